"""`rlbox vast up JOB` without an image: from a plain Debian behind sshd to a fetched result, by one command.

The account is recorded. The instance is a container without Python and without rlbox; its packages come from the
distribution and the package index, and its power is cut.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import Box, image_id, wait_until
from freeport import free_port
from test_vast_there_and_back import JOB, SPEC, TRAIN, Rented
from vastbox import KEY, Platform, serving
from vastmachine import OWN_KEY, Instance

pytestmark = [pytest.mark.allow("sockets"), pytest.mark.slow]
PLAIN = "rlbox-tests-plain:bookworm"
"""What a platform's images have: apt and an sshd, no Python."""
CA = "/etc/ssl/certs/ca-certificates.crt"
SECRET = "planted-for-a-plain-image-5ecret"


def cut(rented: Rented) -> None:
    """Cut its power, and give it back after a while, without a word to anybody."""
    rented.instance.power("stopped")
    time.sleep(8)  # longer than between two looks of the client
    rented.instance.power("running")


def shown(rented: Rented, text: str) -> str:
    """What a shell there prints; empty while its power is off."""
    done = subprocess.run(["docker", "exec", rented.instance.name, "sh", "-c", text], capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="module")
def plain_image() -> str:
    """The plain Debian, made once."""
    if not image_id(PLAIN):
        words = ["mmdebstrap", "--quiet", "--variant=apt", "--include=ca-certificates,openssh-server", "bookworm", "-"]
        archive = subprocess.run(words, check=True, capture_output=True, timeout=600).stdout
        subprocess.run(["docker", "import", "-", PLAIN], input=archive, check=True, capture_output=True)
    return PLAIN


@pytest.fixture
def rented(plain_image: str, tmp_path: Path) -> Iterator[Rented]:
    project = tmp_path / "project"
    (project / "images/rented").mkdir(parents=True)
    packages = '["six==1.16.0", "packaging==24.2", "tqdm==4.67.1"]'
    (project / "images/rented/target.toml").write_text(SPEC.replace('["six==1.16.0"]', packages))
    (project / "train.py").write_text(TRAIN.replace(', os.environ["FROM_PLATFORM"]', ""))
    (project / "text").mkdir()
    (project / "text/text.txt").write_text("42\n")
    (project / "my.env").write_text(f"WANDB_API_KEY={SECRET}\n")
    key, commands = tmp_path / "key", tmp_path / "bin"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    commands.mkdir()
    (commands / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F /dev/null -i {key} "$@"\n')
    (commands / "ssh").chmod(0o755)
    trust = (f"--volume={CA}:{CA}.site:ro", f"--env=SSL_CERT_FILE={CA}.site", f"--env=PIP_CERT={CA}.site")
    name = f"rlbox-vast-{uuid.uuid4().hex[:12]}"
    instance = Instance(name, trust, Path(f"{key}.pub").read_text(), plain_image, free_port())
    with serving(Platform(states=["running"])) as platform:
        extra = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "VAST_URL": platform.url,
            "VAST_API_KEY": KEY,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        one = Rented(
            instance=instance, box=Box(project=project, data=tmp_path / "disk", extra=extra), platform=platform
        )
        one.box.job("sft", JOB)
        done = one.box("lock", "rented")
        assert done.code == 0, done.err
        platform.on_create = instance.create
        yield one
    subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True)


UP = ("vast", "up", "sft", "--upload", "train.py", "--upload", "text=phase_1_ SFT", "--env-file", "my.env")


def test_from_nothing_to_a_fetched_result(rented: Rented) -> None:
    """One command; the power is cut while the packages are installed, and while the training works."""
    dry = rented.box(*UP, "--dry-run")
    assert "it installs 3 packages of the lock" in dry.out, dry.err
    up = rented.box.start(*UP, "--then", "stop", "--yes", "--json")
    try:
        wait_until(lambda: "installing" in shown(rented, "cat /workspace/onstart.status"), "the installation", 400)
        cut(rented)
        wait_until(lambda: int(shown(rented, "cat /workspace/at").strip() or 0) > 10, "some steps", 400)
        cut(rented)
        shown(rented, "touch /workspace/may-end")
        out, err = up.communicate(timeout=400)
    finally:
        up.kill()
    assert up.returncode == 0, err + shown(rented, "tail -n 60 /workspace/onstart.log /workspace/.rlbox-up/job.log")
    assert err.count("connecting again") >= 2, err
    assert SECRET not in out + err
    result = json.loads(out)
    home, run = Path(result["folder"]), result["run"]
    assert (result["state"], home.name) == ("passed", f"vast-{result['instance']}")
    assert json.loads((home / f"runs/{run}/run.json").read_text())["state"] == "passed"
    assert [row["state"] for row in rented.box("runs", "--data", str(home), "--json").data["runs"]] == ["passed"]
    last = int(shown(rented, "cat /workspace/at"))  # whose checkpoint is torn
    assert {path.name for path in (home / "ckpts").iterdir()} == {f"checkpoint-{n}" for n in range(10, last, 10)}
    log = "".join(path.read_text() for path in sorted(home.glob(f"runs/{run}/stages/**/stage.log")))
    assert "begun at 0" in log
    assert "resumed at" in log
    (sent,) = [body for body in rented.platform.calls("PUT") if "image" in body]
    assert sent["image"].startswith("nvidia/cuda:")
    wait_until(lambda: shown(rented, "cat /account.log"), "the stop of the instance")  # after all was fetched
    assert f"Bearer {OWN_KEY}" in shown(rented, "cat /account.log")
    destroyed = rented.box("vast", "destroy", str(result["instance"]), "--yes")
    assert destroyed.code == 0, destroyed.err
