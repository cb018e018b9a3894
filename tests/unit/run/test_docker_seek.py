"""A run without a record on this host is asked for by its labels; an engine's answer may leave everything out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlbox.engine.docker import DockerEngine
from rlbox.run.docker import DockerBackend

ROWS: tuple[dict[str, Any], ...] = (
    {},
    {"Names": None, "Mounts": None},
    {"Names": [], "Mounts": [{"Source": "/data"}]},
    {"Names": ["/other"], "Mounts": [{"Source": "/elsewhere"}, {}]},
)


@pytest.mark.parametrize("rows", [(), ROWS])
def test_what_has_no_name_or_mount_is_none(monkeypatch: pytest.MonkeyPatch, rows: tuple[dict[str, Any], ...]) -> None:
    found = {"Names": ["/rlbox-r-1"], "Mounts": [{"Source": "/data"}]}
    plan: Any = SimpleNamespace(run_id="r-1")
    for told, name in ((rows, None), ((*rows, found), "rlbox-r-1")):
        engine = SimpleNamespace(list_containers=lambda label, told=told: list(told))
        monkeypatch.setattr(DockerEngine, "connect", lambda engine=engine: engine)
        note = DockerBackend().find_unrecorded_container(plan, Path("/data"))
        assert (note.name if note else None) == name
