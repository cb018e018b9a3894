"""Building on a real engine: what is built, what is proven unchanged, how it fails."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from enginebox import TINY, Box, docker, interrupt
from projectbox import own

from rlbox.engine.connection import connect_engine
from rlbox.engine.container import ContainerPlan
from rlbox.errors import TimedOut


@pytest.mark.core
def test_a_removed_image_is_built_again_from_the_cache(tiny: Box) -> None:
    docker("image", "rm", "--force", own("tiny"))
    result = tiny("build", "tiny", "--json")
    assert result.data["state"] == "built"
    log = Path(result.data["log"]).read_text()
    assert "CACHED" in log
    assert "uv pip install" not in log


def test_the_image_explains_itself_and_holds_no_trace_of_the_builder(tiny: Box) -> None:
    found = json.loads(docker("image", "inspect", own("tiny")))[0]
    assert found["Config"]["Labels"]["rlbox.target"] == "tiny"
    history = docker("history", "--no-trunc", own("tiny"))
    for trace in ("ca-certificates.crt", "sources.env=", str(Path.home()) + "/.cache/rlbox"):
        assert trace not in history
    look = "ls -A /run /run/rlbox /var/log /var/lib/apt/lists /root /tmp /opt 2>/dev/null; true"
    listing = docker("run", "--rm", "--network=none", own("tiny"), "sh", "-c", look)
    for trace in (".crt", "sources.env", "tools", ".cache"):
        assert trace not in listing


def test_a_container_is_told_the_sites_ca_bundle(tiny: Box, tmp_path: Path) -> None:
    bundle = tmp_path / "site.crt"
    bundle.write_text("the site's own\n")
    show = ("shell", "tiny", "--", "sh", "-c", 'cat "$SSL_CERT_FILE" "$REQUESTS_CA_BUNDLE"')
    assert tiny(*show, RLBOX_CA_BUNDLE=str(bundle)).out == "the site's own\n" * 2
    assert "site" not in docker("run", "--rm", "--network=none", own("tiny"), "env")


def test_a_target_may_keep_the_ca_bundle_in_its_image(tiny: Box, tmp_path: Path) -> None:
    bundle = tmp_path / "site.crt"
    bundle.write_bytes(Path("/etc/ssl/certs/ca-certificates.crt").read_bytes() + b"# the site's own\n")
    spec = tiny.project / "images/tiny/target.toml"
    spec.write_text(f"{TINY}[build]\nbake_ca = true\n")
    result = tiny("build", "tiny", RLBOX_CA_BUNDLE=str(bundle))
    assert result.code == 0, result.err
    kept = docker("run", "--rm", "--network=none", own("tiny"), "sh", "-c", 'tail -n 1 "$SSL_CERT_FILE"')
    assert kept == "# the site's own\n"


def test_the_runtime_of_rlbox_cannot_disturb_the_stack(tiny: Box) -> None:
    stack = tiny("shell", "tiny", "--", "python", "-c", "import six, importlib.util as u; print(u.find_spec('click'))")
    assert stack.out == "None\n", stack.err
    assert tiny("shell", "tiny", "--", "rlbox", "--version").out.startswith("rlbox ")


def test_a_failing_step_is_named_with_its_last_lines(tiny: Box) -> None:
    lock = tiny.project / "images/tiny/lock.json"
    locked = json.loads(lock.read_text())
    locked["groups"][0]["packages"][0]["sha256"] = "0" * 64
    lock.write_text(json.dumps(locked))
    result = tiny("build", "tiny")
    assert result.code == 1
    assert "build step failed" in result.err
    assert "[tools 1/1] RUN sh /opt/tools/install.sh layers /usr/bin/python3" in result.err
    assert "ash mismatch" in result.err
    assert "next:  full log: " in result.err
    assert "Traceback" not in result.err


def test_ctrl_c_ends_the_build_and_the_next_one_works(tiny: Box) -> None:
    process = tiny.start("build", "tiny", "--no-cache")
    time.sleep(2.5)
    code, err = interrupt(process)
    # Python ends by the signal itself when it came in the middle of an `exec`, which makes every dataclass
    assert code in (0, 130, -signal.SIGINT), err
    assert "Traceback" not in err
    again = tiny("build", "tiny")
    assert again.code == 0, again.err


def test_a_container_that_does_not_end_in_time_is_removed(tiny: Box) -> None:
    labels = {"rlbox.target": f"tiny-{os.getpid()}"}
    plan = ContainerPlan(image=own("tiny"), name="rlbox-slow", argv=("sleep", "60"), labels=labels, network="none")
    with pytest.raises(TimedOut, match="rlbox-slow took longer than 1 s"):
        connect_engine().run_and_remove_container(plan, 1)
    assert connect_engine().list_all_containers_with_label(f"rlbox.target={labels['rlbox.target']}") == []
