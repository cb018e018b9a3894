"""`rlbox engine` where an engine answers: it is left as it is."""

from __future__ import annotations

import json
import subprocess

from enginebox import Box


def test_an_engine_that_answers_is_left_as_it_is(tiny: Box) -> None:
    before = json.loads(tiny("engine", "status", "--json").out)
    up = tiny("engine", "up", "--json")
    assert (up.code, json.loads(up.out)["version"]) == (0, before["version"])
    version = ("docker", "version", "--format", "{{.Server.Version}}")
    assert before["version"] == subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    assert before["ready"]
    assert before["left"] == []
