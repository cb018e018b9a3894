"""A run that begins while its engine ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlbox.errors import EngineError
from rlbox.run.docker import PreparedDocker


@dataclass(frozen=True)
class Container:
    published_ports: tuple[str, ...] = ()


@pytest.mark.allow("sockets")  # docker-py is imported, not asked
def test_an_engine_that_ends_after_the_start_has_begun_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []
    started: list[Any] = []

    def gone(name: str) -> None:
        raise EngineError("no Docker engine answers")

    engine: Any = SimpleNamespace(
        start_container=lambda plan, secrets: started.append(plan),
        inspect_container=gone,
        is_container_active=lambda name: name == "c",
    )
    run_store: Any = SimpleNamespace(write_ref=lambda note, plan=None: notes.append(note))
    image: Any = None
    ready = PreparedDocker(target="t", run_store=run_store, image=image, bytecode=Path(), say=lambda text: None)
    monkeypatch.setattr("rlbox.run.docker.connect_engine", lambda: engine)
    plan: Any = SimpleNamespace(run_id="r", container="c", published={})
    container: Any = Container()
    there = ready._begin(plan, Path(), container, {})
    assert (len(started), [note.started for note in notes], there()) == (1, [""], True)
