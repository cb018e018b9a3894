"""The engine of a host, and what rlbox left on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlbox.amounts import GIB, decimal_size_text
from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.requirements import Requirements
from rlbox.engine.address import is_engine_local, open_engine_tunnel_if_remote
from rlbox.engine.container import ACTIVE_STATES, OWNER_LABEL, RUN_LABEL, TARGET_LABEL
from rlbox.engine.gpu_access import probe_gpu_support
from rlbox.errors import EngineError, NodeError
from rlbox.findings import Finding, listed
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.record.disk_lock import LOCK_FILE, find_lock_owner
from rlbox.system.files import get_free_bytes
from rlbox.system.identity import is_in_image
from rlbox.system.safe_files import is_regular_file

_OLDEST_ENGINE = (20, 10)  # the oldest whose BuildKit mounts secrets, and the oldest that is tested
_LEAST_ROOM = 5 * GIB


def check_engine(requirements: Requirements) -> Iterator[Finding]:
    from rlbox.engine.connection import connect_engine

    try:
        info, rows = connect_engine().info(), connect_engine().list_containers(TARGET_LABEL)
    except EngineError as error:
        yield make_finding("engine-missing", seen=error.what, where=error.where, remedy=error.next_step)
        return
    yield from check_engine_and_probe_host(info, requirements)
    yield from check_run_containers(rows)


def check_engine_and_probe_host(info: Mapping[str, Any], requirements: Requirements) -> Iterator[Finding]:
    address = open_engine_tunnel_if_remote()
    version = _parse_version(str(info.get("ServerVersion", "")))
    if version and version < _OLDEST_ENGINE:
        oldest = ".".join(map(str, _OLDEST_ENGINE))
        yield make_finding("engine-old", seen=str(info["ServerVersion"]), where=address, dotted=oldest)
    is_local = is_engine_local()
    support = probe_gpu_support(info, address, is_local=is_local and not is_in_image())
    if requirements.wants_gpu and not support.methods:
        yield make_finding("gpu-runtime-missing", where=address)
    root = Path(str(info.get("DockerRootDir", "")))
    if is_local and root.is_absolute() and root.is_dir() and (free := get_free_bytes(root) or 0) < _LEAST_ROOM:
        yield make_finding("engine-disk-full", level="warning", where=str(root), room=decimal_size_text(free))


def check_run_containers(containers: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield which runs go on, and which ended ones left a container; `containers` are rows of the engine's API."""
    alive, stale, stale_names = [], [], []
    for row in containers:
        labels, state = row.get("Labels") or {}, str(row.get("State", ""))
        if not (run := labels.get(RUN_LABEL)):
            continue
        owner = _("uid {labels}").format(labels=labels.get(OWNER_LABEL, "unknown"))
        disks = [Path(str(mount.get("Source", ""))) for mount in row.get("Mounts") or ()]
        if state in ACTIVE_STATES or any(map(_may_be_locked, disks)):  # it goes on, or is being started
            alive.append((run, owner))
        else:
            stale_names.append(str(row["Names"][0]).lstrip("/") if row.get("Names") else str(row.get("Id", ""))[:12])
            stale.append(f"{stale_names[-1]} ({state}, {owner})")
    if alive:
        seen, stop = listed([f"{run} ({owner})" for run, owner in alive]), f"{alive[0][0]} --data ITS-DATA-DISK"
        place = _("on this engine")
        yield make_finding("live-runs", level="note", seen=seen, where="engine", place=place, stop=stop)
    if stale:
        yield make_finding("stale-containers", level="warning", seen=listed(stale), names=" ".join(stale_names[:10]))


def _parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: `20.10.24+dfsg1` is (20, 10, 24)."""
    parts = text.partition("+")[0].partition("-")[0].split(".")
    return tuple(number for part in parts if (number := whole_number(part)) is not None)


def _may_be_locked(directory: Path) -> bool:
    """Return whether a living rlbox holds a directory as its data disk; one that cannot be asked may be held."""
    try:
        return is_regular_file(directory.resolve() / LOCK_FILE) and find_lock_owner(directory.resolve()) is not None
    except (OSError, NodeError):
        return True
