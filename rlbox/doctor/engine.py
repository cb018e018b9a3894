"""The engine of a host, what rlbox left on it, and whether the image of a target is current."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlbox.amounts import GIB, decimal_size_text, duration_text
from rlbox.doctor.processes import make_live_runs_finding
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
_MAX_CLOCK_SKEW_S = 300.0


def check_engine(requirements: Requirements) -> Iterator[Finding]:
    from rlbox.engine.connection import connect_engine

    try:
        info, rows = connect_engine().info(), connect_engine().list_containers(TARGET_LABEL)
    except EngineError as error:
        yield Finding(
            id="engine-missing", title=_("the container engine cannot be used"), seen=error.what, where=error.where,
            remedy=error.next_step, breaks=("image-*",),
        )  # fmt: skip
        return
    yield from check_engine_and_probe_host(info, requirements)
    yield from check_containers([_parse_container(row) for row in rows if (row.get("Labels") or {}).get(RUN_LABEL)])


def check_engine_and_probe_host(info: Mapping[str, Any], requirements: Requirements) -> Iterator[Finding]:
    """Yield what is wrong with an engine by what its API says of it."""
    address = open_engine_tunnel_if_remote()
    version = parse_version(str(info.get("ServerVersion", "")))
    if version and version < _OLDEST_ENGINE:
        yield Finding(
            id="engine-old", title=_("the container engine is too old"), seen=str(info["ServerVersion"]), where=address,
            remedy=_("install Docker {dotted} or newer").format(dotted=".".join(map(str, _OLDEST_ENGINE))),
            breaks=("image-*",),
        )  # fmt: skip
    is_local = is_engine_local()
    support = probe_gpu_support(info, address, is_local=is_local and not is_in_image())
    if requirements.wants_gpu and not support.methods:
        yield Finding(
            id="gpu-runtime-missing", title=_("the engine cannot give a GPU to a container"),
            seen=_("neither a runtime nvidia nor a CDI specification"), where=address,
            remedy="install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure && restart the engine",
        )  # fmt: skip
    root = Path(str(info.get("DockerRootDir", "")))
    if is_local and root.is_absolute() and root.is_dir() and (free := get_free_bytes(root) or 0) < _LEAST_ROOM:
        yield Finding(
            id="engine-disk-full", title=_("the engine's disk is nearly full"), level="warning",
            seen=_("{room} free").format(room=decimal_size_text(free)), where=str(root),
            remedy=_("remove unused images (`docker image ls`), or move its data-root"),
            covers=("disk-full",),
        )  # fmt: skip
    skew = _compute_skew(str(info.get("SystemTime", "")))
    if abs(skew) > _MAX_CLOCK_SKEW_S:
        yield Finding(
            id="clock-skew", title=_("the engine's clock differs from this machine's"), seen=duration_text(abs(skew)),
            where=address, remedy=_("set both by NTP"),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunContainer:
    """A container of a run; `is_live`: the run goes on, or is being started."""

    name: str
    run: str
    state: str
    owner: str
    is_live: bool


def check_containers(containers: list[RunContainer]) -> Iterator[Finding]:
    """Yield which runs go on, and which ended ones left a container."""
    if alive := [container for container in containers if container.is_live]:
        rows, stop = [f"{row.run} ({row.owner})" for row in alive], f"{alive[0].run} --data ITS-DATA-DISK"
        yield make_live_runs_finding(rows, place_phrase=_("on this engine"), finding_where="engine", stop_args=stop)
    if stale := [container for container in containers if not container.is_live]:
        yield Finding(
            id="stale-containers", title=_("containers of ended runs are still there"), level="warning",
            seen=listed([f"{row.name} ({row.state}, {row.owner})" for row in stale]), where=_("engine"),
            remedy=f"docker rm -f {' '.join(row.name for row in stale[:10])}", breaks=("port-taken",),
        )  # fmt: skip


def note_missing_or_outdated_image(state: Literal["current", "missing", "outdated"], target: str) -> Iterator[Finding]:
    if state != "current":
        says = {"missing": _("is not built yet"), "outdated": _("is out of date")}
        yield Finding(
            id=f"image-{state}",
            title=_("the image of {target} {says}").format(target=target, says=says[state]), level="note",
            where=f"rlbox/{target}",
            remedy=f"rlbox build {target}",
        )  # fmt: skip


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: `20.10.24+dfsg1` is (20, 10, 24)."""
    parts = text.partition("+")[0].partition("-")[0].split(".")
    return tuple(number for part in parts if (number := whole_number(part)) is not None)


def _parse_container(row: Mapping[str, Any]) -> RunContainer:
    labels, state = row["Labels"], str(row.get("State", ""))
    names = [str(name).lstrip("/") for name in row.get("Names") or ()]
    disks = [Path(str(mount.get("Source", ""))) for mount in row.get("Mounts") or ()]
    return RunContainer(
        name=names[0] if names else str(row.get("Id", ""))[:12],
        run=str(labels[RUN_LABEL]),
        state=state,
        owner=_("uid {labels}").format(labels=labels.get(OWNER_LABEL, "unknown")),
        is_live=state in ACTIVE_STATES or any(map(_may_be_locked, disks)),
    )


def _may_be_locked(directory: Path) -> bool:
    """Return whether a living rlbox holds a directory as its data disk; one that cannot be asked may be held."""
    try:
        return is_regular_file(directory.resolve() / LOCK_FILE) and find_lock_owner(directory.resolve()) is not None
    except (OSError, NodeError):
        return True


def _compute_skew(engine_time: str) -> float:
    """Return how far the engine's clock is ahead, seconds; its answer has more digits than Python reads."""
    with contextlib.suppress(ValueError):
        time_utc = datetime.datetime.strptime(engine_time[:19], "%Y-%m-%dT%H:%M:%S")
        if engine_time[19:].lstrip(".0123456789") == "Z":
            return time_utc.replace(tzinfo=datetime.timezone.utc).timestamp() - time.time()
    return 0.0
