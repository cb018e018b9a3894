"""The on-start script in a container that imitates an instance of vast.ai."""

from __future__ import annotations

import random
import re
import time

import pytest
from vastinstance import BARE_SHELLS, GIVEN, SHELLS, VastInstance, vast_instance

STATUS = "/workspace/onstart.status"


def check_shells(one: VastInstance) -> None:
    """Every kind of shell has what the container was given, and the stack's PATH."""
    given = {**GIVEN, "FROM_IMAGE": "yes", **({} if one.bare else {"SANDBOX_URL": "http://127.0.0.1:28080"})}
    found = one.shells()
    assert set(found) == (set(BARE_SHELLS) if one.bare else set(SHELLS))
    for kind, env in found.items():
        for name, text in given.items():
            unread = name == "HASHED" and kind in ("cron", "su")  # pam_env cannot, and rlbox-init says so
            assert unread or env.get(name) == text, f"{name} in {kind}: {env.get(name)!r}"
        assert "LINES_OF" not in env, kind
        assert "/opt/venv/bin" in env["PATH"].split(":"), kind


def check_ready(one: VastInstance) -> None:
    code, said = one.sh(f"sh /onstart.sh; code=$?; cat {STATUS}; exit $code")
    assert (code, said.splitlines()[-1]) == (0, "ready"), said + one.sh("tail -n 60 /workspace/onstart.log")[1]


@pytest.mark.parametrize("image", ["bare", pytest.param("cc", marks=pytest.mark.slow)])
def test_three_runs_after_a_cut_and_every_shell(image: str) -> None:
    with vast_instance(image=image) as one:
        assert one.sh("ls /var/run/docker.sock; command -v docker")[0] != 0
        one.cut(0.2)
        check_ready(one)
        state = one.state()
        for _ in range(2):
            check_ready(one)
            assert one.state() == state
        assert state.splitlines()[-1] == ("0" if one.bare else "1")  # sandboxes
        log = one.sh("cat /workspace/onstart.log")[1]
        assert "rlbox-init: LINES_OF is left out" in log
        assert GIVEN["HF_TOKEN"] not in log
        assert one.bare or re.search(r"^\S+Z sandbox: ok$", log, re.M)
        check_shells(one)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_it_survives_being_cut_anywhere(seed: int) -> None:
    chance = random.Random(seed)
    with vast_instance() as one:
        begun = time.monotonic()
        check_ready(one)
        whole_s = time.monotonic() - begun
        state = one.state()
        for _ in range(12):
            one.cut(chance.uniform(0.0, whole_s))
            if chance.random() < 0.3:
                one.restart()
        check_ready(one)
        assert one.state() == state
        check_shells(one)
    with vast_instance() as one:  # and so does the first start
        for _ in range(8):
            one.cut(chance.uniform(0.0, whole_s))
        check_ready(one)
        assert one.state() == state


@pytest.mark.slow
def test_a_port_that_is_taken() -> None:
    taken = "import http.server as h; h.HTTPServer(('127.0.0.1', 28080), h.SimpleHTTPRequestHandler).serve_forever()"
    with vast_instance() as one:
        one.sh(f'python3 -I -c "{taken}" >/dev/null 2>&1 & sleep 1')
        for _ in range(2):
            check_ready(one)
            assert one.sh("grep SANDBOX_ /etc/environment")[1] == (
                'SANDBOX_CONDA_ROOT="/opt/rlbox/sandbox"\nSANDBOX_PORT="28081"\nSANDBOX_URL="http://127.0.0.1:28081"\n'
            )


@pytest.mark.slow
def test_what_goes_wrong_is_said_in_log_and_status() -> None:
    with vast_instance("echo 'mine ran' >>/workspace/mine\nexit 7\n") as one:
        assert one.sh("sh /onstart.sh")[0] == 1
        assert one.sh(f"cat {STATUS}; cat /workspace/mine")[1] == "failed: added\nmine ran\n"
        assert "added: FAILED, exit code 7" in one.sh("cat /workspace/onstart.log")[1]
        one.sh("ln -sf /bin/false /opt/rlbox/bin/sandbox-serve; tmux -L rlbox-sandbox kill-server; sleep 1")
        assert one.sh("sh /onstart.sh")[0] == 1
        assert one.sh(f"cat {STATUS}")[1] == "failed: sandbox added\n"
        one.sh("rm -r /opt/rlbox/share/lock.json")
        assert one.sh("sh /onstart.sh")[0] == 1
        assert "set RLBOX_WHEEL to the address of rlbox's wheel" in one.sh("cat /workspace/onstart.log")[1]


@pytest.mark.slow
def test_the_image_of_another_target_is_taken_and_named() -> None:
    with vast_instance(image="bare") as one:
        one.sh("sed -i s/lab-bare/other/ /opt/rlbox/share/lock.json")
        assert one.sh("sh /onstart.sh")[0] == 0
        assert one.sh(f"cat {STATUS}")[1] == "ready (the image of another target)\n"
        check_shells(one)


@pytest.mark.slow
def test_a_packed_script_does_the_same() -> None:
    added = "echo 'mine ran' >>/workspace/mine\n" + "# what I think of it\n" * 900
    with vast_instance(added) as one:
        assert len(one.sh("cat /onstart.sh")[1]) <= 4048
        one.cut(0.2)
        check_ready(one)
        assert one.sh("cat /workspace/mine")[1].splitlines()[-1] == "mine ran"
