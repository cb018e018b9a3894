"""What is advised of runs in containers is done, on a real engine: memory, records, and whose a run is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from another_user import MAY_WRITE
from enginebox import Box, Result, wait_until
from following import Follow

JOB = """
title = "one small stage"
target = "tiny"
[[stages]]
name = "only"
title = "does something"
command = ["sh", "-c", "SCRIPT"]
limits = { total_s = 900, silence_s = 900 }
"""
EATS = "python3 -c 'bytearray(MIB << 20)'"


@pytest.fixture
def box(tiny: Box, follow: Follow) -> Box:
    """The project of the target `tiny`, in which all that is followed is typed."""
    follow.rlbox = tiny
    return tiny


def job(box: Box, script: str) -> None:
    box.job("one", JOB.replace("SCRIPT", script))


def test_a_stage_that_needs_less_memory(box: Box, follow: Follow) -> None:
    job(box, EATS.replace("MIB", "2000"))
    step = follow("run", "one")
    assert "use a smaller batch" in step.text
    job(box, EATS.replace("MIB", "10"))
    follow.again(step)


def test_a_container_gets_more_memory(box: Box, follow: Follow) -> None:
    """Too little for the supervisor itself."""
    job(box, "true")
    spec = box.project / "images/tiny/target.toml"
    text = spec.read_text()
    spec.write_text(text.replace("memory_gib = 0.5", "memory_gib = 0.015"))
    assert box("build", "tiny").code == 0
    step = follow("run", "one")
    assert "the engine ended container" in step.said.err
    spec.write_text(text)
    assert box("build", "tiny").code == 0
    follow.again(step)


def test_a_record_that_is_not_the_supervisors(box: Box, follow: Follow) -> None:
    job(box, "[ {attempt} = 2 ]")
    assert box("run", "one").code == 1
    record = box.runs()[-1] / "run.json"
    record.write_text(record.read_text().replace('"failed"', '"passed"'))
    step = follow("attach", record.parent.name)
    follow.types(step)
    assert box.state()["state"] == "passed"


def test_the_container_of_another_user(box: Box, follow: Follow, tmp_path: Path) -> None:
    job(box, "echo begun; sleep 600")
    run = box("run", "one", "--detach").out.strip()
    wait_until(lambda: "begun" in box("logs", run).out, "the first line")

    def as_another(*words: str) -> Result:
        argv = [*MAY_WRITE, *box.argv(*words)]
        done = subprocess.run(argv, cwd=box.project, env=box.env(), capture_output=True, text=True, timeout=120)
        return Result(code=done.returncode, out=done.stdout, err=done.stderr)

    step = follow.step(("stop", run), as_another("stop", run))
    follow.again(step)  # as root
    assert box.state()["state"] == "interrupted"
