"""What an ended container said is read whole: that a stage passed may have been said many lines before the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlbox.engine.docker import DockerEngine

LINES = ["rlbox: first: passed", *(f"rlbox: other: service s{number} ready" for number in range(5000))]


def test_all_lines_are_read() -> None:
    def logs(tail: int | str = "all") -> bytes:
        return "\n".join(LINES if tail == "all" else LINES[-int(tail) :]).encode()

    container = SimpleNamespace(logs=logs)
    client: Any = SimpleNamespace(containers=SimpleNamespace(get=lambda name: container))
    output = DockerEngine(client, "unix:///nowhere").read_log("rlbox-r-1")
    assert output is not None
    assert output.splitlines() == LINES
