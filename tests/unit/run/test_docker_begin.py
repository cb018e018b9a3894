"""A run that begins while its engine ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlbox.errors import EngineError
from rlbox.run.docker import ReadyDocker


def test_an_engine_that_ends_after_the_start_has_begun_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []
    started: list[str] = []

    def gone(name: str) -> None:
        raise EngineError("no Docker engine answers")

    engine: Any = SimpleNamespace(
        start=lambda plan, secrets: started.append(plan), container=gone, running=lambda name: name == "c"
    )
    ledger: Any = SimpleNamespace(write_note=lambda note, plan=None: notes.append(note))
    ready = ReadyDocker(
        target="t",
        ledger=ledger,
        image=Any,
        bytecode=Path(),
        engine=engine,
        say=lambda text: None,  # type: ignore[arg-type]
    )
    monkeypatch.setattr("rlbox.run.docker.dataclasses.replace", lambda value, **changes: value)
    plan: Any = SimpleNamespace(run_id="r", container="c", published={})
    there = ready._begin(plan, Path(), Any, {})  # type: ignore[arg-type]
    assert (len(started), [note.started for note in notes], there()) == (1, [""], True)
