"""A run that begins while its engine ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlbox.errors import EngineError
from rlbox.run.docker import DockerRunStarter


@dataclass(frozen=True)
class Container:
    published_ports: tuple[str, ...] = ()


@pytest.mark.allow("sockets")  # docker-py is imported, not asked
def test_an_engine_that_ends_after_the_start_has_begun_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs: list[Any] = []
    started: list[Any] = []

    def gone(name: str) -> None:
        raise EngineError("cannot connect to Docker")

    engine: Any = SimpleNamespace(
        create_and_start_container_and_network=lambda plan, secrets: started.append(plan),
        inspect_container=gone,
        is_container_active=lambda name: name == "c",
    )
    run_store: Any = SimpleNamespace(
        data_dir=tmp_path, save_container_ref_and_plan=lambda ref, plan=None: refs.append(ref)
    )
    image: Any = SimpleNamespace(tag="t", container=None)
    prepared = DockerRunStarter(
        target="t",
        run_store=run_store,
        image=image,
        bytecode_dir_in_data=Path("cache/bytecode/t/1"),
        print_status=lambda text: None,
    )
    monkeypatch.setattr("rlbox.run.docker.connect_engine", lambda: engine)
    monkeypatch.setattr("rlbox.run.docker.plan_container", lambda *args, **fields: Container())
    paths = SimpleNamespace(source="", run="/r")
    plan: Any = SimpleNamespace(run_id="r", container="c", published={}, hub={}, paths=paths)
    lock: Any = None
    is_alive = prepared.start(plan, Path(), {}, lock)
    assert (len(started), [ref.started_at for ref in refs], is_alive()) == (1, [None], True)
