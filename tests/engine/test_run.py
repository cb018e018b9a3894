"""`rlbox run` on a real engine with small jobs: gates, limits, bad input, interruption."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path

import pytest
from enginebox import Box, containers, docker, interrupt, wait_until
from fakes import load_cases
from projectbox import own

CASES = load_cases("engine", "test_run")
JOB = CASES["JOB"]
MAKES = "echo hello > {run}/made; echo made it"


def write(box: Box, first: str = MAKES, second: str = "echo fine", total: int = 60, silence: int = 30) -> None:
    text = JOB.replace("FIRST", first).replace("SECOND", second)
    box.job("two", text.replace("TOTAL", str(total)).replace("SILENCE", str(silence)))


def states(box: Box) -> list[str]:
    return [stage["state"] for stage in box.state()["stages"]]


def cause(box: Box) -> str:
    return next(stage["cause"]["what"] for stage in box.state()["stages"] if stage["cause"])


@pytest.mark.core
def test_two_stages_pass(tiny: Box) -> None:
    write(tiny)
    result = tiny("run", "two", "--json")
    assert result.code == 0, result.err
    assert result.data["state"] == "passed"
    assert states(tiny) == ["passed", "passed"]
    run = tiny.runs()[-1]
    assert {"plan.json", "run.json", "spec", "stages"} <= {path.name for path in run.iterdir()}
    assert "made it" in tiny("logs", "--target", "tiny", "--stage", "first").out
    assert run.name in tiny("runs", "--target", "tiny").out


@pytest.mark.core
def test_exit_0_without_the_accepted_line_is_a_failure(tiny: Box) -> None:
    write(tiny, first="echo hello > {run}/made; echo something else")
    result = tiny("run", "two")
    assert result.code == 1
    assert states(tiny) == ["failed", "not started"]
    assert "never held a line like /made it/" in result.err
    assert "something else" in result.err


def test_a_stage_that_dies_is_quoted(tiny: Box) -> None:
    write(tiny, second="echo working; echo 'RuntimeError: the first cause' >&2; exit 3")
    result = tiny("run", "two")
    assert result.code == 1
    assert states(tiny) == ["passed", "failed"]
    assert "exit code 3" in result.err
    assert "RuntimeError: the first cause" in result.err


def test_lack_of_memory_is_named(tiny: Box) -> None:
    write(tiny, second="python3 -c 'x = bytearray(900 << 20)'")
    result = tiny("run", "two")
    assert result.code == 1
    assert "out of memory: container limit 536.9 MB" in result.err


def test_build_makes_a_missing_and_an_outdated_image_first(tiny: Box) -> None:
    write(tiny)
    spec = tiny.project / "images/made-first/target.toml"
    spec.parent.mkdir()
    spec.write_text('include = "tiny"\ntitle = "built by its first run"\n')
    assert tiny("lock", "made-first").code == 0
    asked = ("run", "two", "--target", "made-first", "--build")
    try:
        wrong = tiny(*asked, "--set", "nosuch=1")
        assert (wrong.code, "built in" in wrong.err) == (2, False)
        first = tiny(*asked, "--json")
        assert first.code == 0, first.err
        assert "built in" in first.err
        assert first.data["state"] == "passed"  # one object: the run's
        assert "built in" not in tiny(*asked).err
        spec.write_text(spec.read_text() + '[env]\nNEW = "1"\n')
        assert tiny("lock", "made-first").code == 0
        changed = tiny(*asked)
        assert changed.code == 0, changed.err
        assert f"rebuilding {own('made-first')}: " in changed.err
    finally:
        docker("image", "rm", "--force", own("made-first"))


def test_one_run_at_a_time_on_a_data_disk(tiny: Box) -> None:
    write(tiny, second="echo there; sleep 300")
    first = tiny.start("run", "two")
    wait_until(lambda: states_or_none(tiny) == ["passed", "running"], "stage second")
    second = tiny("run", "two")
    assert second.code == 8
    assert f"run {tiny.runs()[-1].name} has the data disk: job two, " in second.err
    assert f"(uid {os.getuid()}) on {socket.gethostname()}" in second.err
    assert interrupt(first)[0] == 130


def test_the_container_carries_labels_and_limits_and_the_supervisor_is_its_process_1(tiny: Box) -> None:
    write(tiny, second="echo there; sleep 300")
    process = tiny.start("run", "two")
    wait_until(lambda: containers(tiny.data), "the run's container")
    (name,) = containers(tiny.data)
    facts = json.loads(docker("inspect", name))[0]
    assert facts["Config"]["Labels"]["rlbox.run"] == tiny.runs()[-1].name
    host = facts["HostConfig"]
    assert (host["Init"], host["ShmSize"], host["Memory"], host["PidsLimit"]) == (False, 1 << 28, 1 << 29, 200)
    assert interrupt(process)[0] == 130


SOME, MORE = (0, 3), (1, 2, *range(4, 12))  # moments at which Ctrl-C comes


@pytest.mark.parametrize("seed", [*SOME, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE)])
def test_ctrl_c_at_any_moment_leaves_nothing(tiny: Box, seed: int) -> None:
    write(tiny, second="echo there; sleep 300")
    bystander = docker("run", "-d", "--rm", "--init", "--network=none", own("tiny"), "sleep", "900").strip()
    try:
        process = tiny.start("run", "two")
        time.sleep(random.Random(seed).uniform(0.2, 6))
        code, err = interrupt(process)
        assert code == 130, err
        assert "Traceback" not in err
        assert containers(tiny.data) == []
        for run in tiny.runs() if (tiny.data / "runs").exists() else ():
            if (run / "run.json").exists():
                assert json.loads((run / "run.json").read_text())["state"] in ("interrupted", "failed")
        assert docker("inspect", "--format={{.State.Running}}", bystander) == "true\n"
    finally:
        docker("rm", "--force", bystander)


def states_or_none(box: Box) -> list[str] | None:
    try:
        return states(box)
    except (OSError, ValueError, IndexError):
        return None


def test_the_same_stages_pass_in_place(tiny: Box) -> None:
    write(tiny)
    result = tiny("run", "two", "--place", "here")
    assert result.code == 0, result.err
    assert "no container: the stages run directly on this machine" in result.err
    assert states(tiny) == ["passed", "passed"]
    write(tiny, second="echo there; sleep 300")
    process = tiny.start("run", "two", "--place", "here")
    wait_until(lambda: states_or_none(tiny) == ["passed", "running"], "stage second")
    assert interrupt(process)[0] == 130
    mark = f"RLBOX_RUN={tiny.runs()[-1].name}".encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process is gone
        return b""
