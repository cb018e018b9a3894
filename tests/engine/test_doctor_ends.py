"""`rlbox doctor TARGET` takes its container along, however it ends; the fixture `tiny` finds none afterwards."""

from __future__ import annotations

import subprocess

from enginebox import Box, containers, interrupt, wait_until
from following import findings


def test_its_time_is_over(tiny: Box) -> None:
    said = tiny("doctor", "tiny", "--budget=0.1")
    assert "not finished: image: " in said.out + said.err  # the check's time was over, or its container's
    assert containers(tiny.data) == []


def test_ctrl_c(tiny: Box) -> None:
    with subprocess.Popen(
        tiny.argv("doctor", "tiny", "--budget=60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tiny.project,
        env=tiny.env(),
        start_new_session=True,
    ) as process:
        wait_until(lambda: containers(tiny.data), "the container that is examined")
        assert interrupt(process)[0] == 130
    assert containers(tiny.data) == []
    assert "container-refused" not in findings(tiny("doctor", "tiny"))
