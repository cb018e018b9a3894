"""What is advised when the engine refuses, or cannot be found, is done: a real engine and its client."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from enginebox import Box
from following import Follow, findings

UNHEARD = '[run.ulimits]\nnofile = "4000000000:4000000000"\n'  # more than any kernel allows


def test_limits_are_lowered(tiny: Box, follow: Follow) -> None:
    spec = tiny.project / "images/tiny/target.toml"
    text = spec.read_text()
    spec.write_text(text + UNHEARD)
    said = tiny("doctor", "tiny")
    step = follow.found(("doctor", "tiny"), said, "container-refused")
    assert "rlimit" in said.out
    assert "[run]" in step.text
    spec.write_text(text)
    assert "container-refused" not in findings(tiny("doctor", "tiny"))


def test_a_context_that_there_is(tiny: Box, follow: Follow) -> None:
    extra = {"DOCKER_CONTEXT": "nosuch"}
    follow.rlbox = replace(tiny, extra=extra)
    step = follow("engine", "status")
    listed = subprocess.run(step.text.split(), capture_output=True, text=True, check=True).stdout
    extra["DOCKER_CONTEXT"] = listed.split("\n")[1].split()[0]
    follow.again(step)
