"""The state of a host's engine."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.doctor.judge.host import Container, EngineFacts
from rlbox.engine.address import engine_address, engine_is_here
from rlbox.engine.container import OWNER_LABEL, RUN_LABEL, TARGET_LABEL
from rlbox.engine.gpu_probe import probe_offer
from rlbox.errors import EngineError, NodeError
from rlbox.foreign import whole_number
from rlbox.record.disk_hold import LOCK_FILE, disk_holder
from rlbox.system.files import free_bytes
from rlbox.system.identity import in_image
from rlbox.system.safe_files import is_file


def probe_engine() -> EngineFacts:
    """Return the state of the engine and of rlbox's containers."""
    from rlbox.engine.api import engine

    try:
        info, containers = engine().info(), engine().list_containers(TARGET_LABEL)
    except EngineError as error:
        return EngineFacts(error=error.what, where=error.where, remedy=error.next_step)
    root = str(info.get("DockerRootDir", ""))
    return EngineFacts(
        where=engine_address(),
        version=_numbers(str(info.get("ServerVersion", ""))),
        gpu_ways=probe_offer(info, engine_address(), here=engine_is_here() and not in_image()).ways,
        root=root,
        room=free_bytes(Path(root)) if root and engine_is_here() and Path(root).is_dir() else None,
        containers=tuple(map(_container, containers)),
        clock_s=_skew(str(info.get("SystemTime", ""))),
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.partition("+")[0].partition("-")[0].split(".")
    return tuple(number for part in parts if (number := whole_number(part)) is not None)


def _container(row: Mapping[str, Any]) -> Container:
    labels = row.get("Labels") or {}
    names = [str(name).lstrip("/") for name in row.get("Names") or ()]
    return Container(
        name=names[0] if names else str(row.get("Id", ""))[:12],
        run=str(labels.get(RUN_LABEL, "")),
        state=str(row.get("State", "")),
        owner=f"uid {labels.get(OWNER_LABEL, 'unknown')}",
        busy=any(_may_be_held(Path(str(mount.get("Source", "")))) for mount in row.get("Mounts") or ()),
    )


def _may_be_held(folder: Path) -> bool:
    """Return whether a living rlbox holds a folder as its data disk; one that cannot be asked may be held."""
    try:
        return is_file(folder.resolve() / LOCK_FILE) and disk_holder(folder.resolve()) is not None
    except (OSError, NodeError):
        return True


def _skew(text: str) -> float:
    """Return how far the engine's clock is ahead, seconds; its answer has more digits than Python reads."""
    with contextlib.suppress(ValueError):
        told = datetime.datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
        zone = text[19:].lstrip(".0123456789")
        return told.timestamp() - time.time() if zone == "Z" else 0.0
    return 0.0
