"""Runs beside an engine that is reached over SSH: RLBOX_TEST_SSH_ENGINE names one (ssh://USER@HOST), else skipped."""

from __future__ import annotations

import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import TINY, Box, interrupt, wait_until

ADDRESS = os.environ.get("RLBOX_TEST_SSH_ENGINE", "")
SECRET = "planted-over-ssh-5ecret"
JOB = """
title = "One stage"
target = "tiny"
secrets = ["WANDB_API_KEY"]
[[stages]]
name = "one"
title = "one"
secrets = ["WANDB_API_KEY"]
command = ["sh", "-c", "echo key $WANDB_API_KEY; for i in $(seq SECONDS); do echo step $i; sleep 1; done; echo Final"]
limits = { total_s = 600, silence_s = 300 }
gate = { require = [{ pattern = "^key" }, { pattern = "^Final" }] }
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not ADDRESS, reason="RLBOX_TEST_SSH_ENGINE names no engine")]


@pytest.fixture(scope="module")
def far_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the target `tiny`, built over there."""
    project = tmp_path_factory.mktemp("project")
    (project / "images/tiny").mkdir(parents=True)
    (project / "images/tiny/target.toml").write_text(TINY)
    box = Box(project=project, data=Path("/var/tmp"), extra={"DOCKER_HOST": ADDRESS})
    for words in (("lock", "tiny"), ("build", "tiny")):
        result = box(*words)
        assert result.code == 0, result.err
    return project


@pytest.fixture
def far(far_project: Path) -> Iterator[Box]:
    """The project, with a data disk over there."""
    data = Path(f"/var/tmp/rlbox-test-{os.getpid()}-{time.monotonic_ns()}")
    over_there("mkdir", str(data))
    yield Box(project=far_project, data=data, extra={"DOCKER_HOST": ADDRESS, "WANDB_API_KEY": SECRET})
    over_there("rm", "-rf", str(data))


def over_there(*words: str) -> str:
    login = ADDRESS.removeprefix("ssh://")
    return subprocess.run(["ssh", "-oBatchMode=yes", login, *words], capture_output=True, text=True).stdout


def containers() -> list[str]:
    return over_there(
        "docker", "ps", "--all", "--quiet", "--filter=label=rlbox.run", "--filter=label=rlbox.helper"
    ).split()


def test_a_run_and_all_that_looks_at_it(far: Box) -> None:
    far.job("short", JOB.replace("SECONDS", "2"))
    done = far("run", "short", "--json")
    assert (done.code, done.data["state"]) == (0, "passed"), done.err
    assert not far.data.exists()
    assert far("runs", "--json").data["runs"][0]["state"] == "passed"
    assert "key ***\n" in far("logs").out
    assert far("attach").code == 0
    assert far("report", "--open", "no").code == 0
    assert far("bundle").code == 0
    run = done.data["run"]
    with tarfile.open(far.project / f"{run}.tar.gz") as tar:
        assert any(name.endswith("run.json") for name in tar.getnames())
    assert SECRET not in (far.project / f"{run}.html").read_text()
    assert over_there("grep", "-rl", SECRET, str(far.data)) == ""
    assert containers() == []


def test_a_run_that_is_left_alone_and_stopped(far: Box) -> None:
    far.job("long", JOB.replace("SECONDS", "300"))
    assert far("run", "long", "--detach").code == 0
    wait_until(lambda: "step 1\n" in far("logs").out, "the first step")
    assert far("runs", "--json").data["runs"][0]["state"] == "running"
    assert far("stop").code == 0
    assert far("runs", "--json").data["runs"][0]["state"] == "interrupted"


def test_ctrl_c_stops_the_run_over_there(far: Box) -> None:
    far.job("long", JOB.replace("SECONDS", "300"))
    process = far.start("run", "long")
    wait_until(lambda: "step 1\n" in far("logs").out, "the first step")
    code, err = interrupt(process)
    assert code == 130, err
    assert far("runs", "--json").data["runs"][0]["state"] == "interrupted"
    assert containers() == []


def test_the_run_outlives_its_command_line(far: Box) -> None:
    far.job("long", JOB.replace("SECONDS", "20"))
    process = far.start("run", "long")
    wait_until(lambda: "step 1\n" in far("logs").out, "the first step")
    process.kill()
    process.communicate()
    assert far("attach").code == 0
    assert far("runs", "--json").data["runs"][0]["state"] == "passed"
