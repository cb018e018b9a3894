"""The engine of a host, what rlbox left on it, and whether the image of a target is current."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import GIB, duration_text, size_text
from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.processes import make_live_runs_finding
from rlbox.doctor.requirements import Requirements
from rlbox.engine.address import is_engine_local, open_engine_connection_address
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

OLDEST_ENGINE = (20, 10)  # the oldest whose BuildKit mounts secrets, and the oldest that is tested
_LEAST_ROOM = 5 * GIB


@dataclass(frozen=True, kw_only=True)
class EngineContainer:
    """`state` as the engine says it, `is_disk_locked` when a living rlbox holds its data disk."""

    name: str
    run: str
    state: str
    owner: str
    is_disk_locked: bool = False

    @property
    def has_live_run(self) -> bool:
        """Whether a run goes on in it, or is being started: its process 1 is the supervisor."""
        return self.is_disk_locked or self.state in ACTIVE_STATES


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The engine as it answers; `error` and `remedy` say why it does not."""

    error: str = ""
    address: str = ""
    remedy: str = ""
    version: tuple[int, ...] = ()
    gpu_mechanisms: tuple[str, ...] = ()
    data_root: str = ""
    free_bytes: int | None = None
    containers: tuple[EngineContainer, ...] = ()
    clock_skew_s: float = 0.0


def _answers(facts: EngineFacts, __: Requirements) -> Iterator[Finding]:
    if facts.error:
        yield Finding(
            id="engine-missing", title=_("the container engine cannot be used"), seen=facts.error, where=facts.address,
            remedy=facts.remedy, breaks=("image-*",),
        )  # fmt: skip


def _new_enough(facts: EngineFacts, __: Requirements) -> Iterator[Finding]:
    if facts.version and facts.version < OLDEST_ENGINE:
        yield Finding(
            id="engine-old", title=_("the container engine is too old"),
            seen=_dotted(facts.version), where=facts.address,
            remedy=_("install Docker {dotted} or newer").format(dotted=_dotted(OLDEST_ENGINE)), breaks=("image-*",),
        )  # fmt: skip


def _gives_gpus(facts: EngineFacts, requirements: Requirements) -> Iterator[Finding]:
    if requirements.wants_gpu and not facts.gpu_mechanisms:
        yield Finding(
            id="gpu-runtime-missing", title=_("the engine cannot give a GPU to a container"),
            seen=_("neither a runtime nvidia nor a CDI specification"), where=facts.address,
            remedy="install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure && restart the engine",
        )  # fmt: skip


def _room(facts: EngineFacts, __: Requirements) -> Iterator[Finding]:
    if facts.free_bytes is not None and facts.free_bytes < _LEAST_ROOM:
        yield Finding(
            id="engine-disk-full", title=_("the engine's disk is nearly full"), level="warning",
            seen=_("{room} free").format(room=size_text(facts.free_bytes)), where=facts.data_root,
            remedy=_("remove images that nobody needs (`docker image ls`), or move its data-root"),
            covers=("disk-full",),
        )  # fmt: skip


def _clock(facts: EngineFacts, __: Requirements) -> Iterator[Finding]:
    if abs(facts.clock_skew_s) > 300:
        yield Finding(
            id="clock-skew", title=_("the engine's clock differs from this machine's"),
            seen=duration_text(facts.clock_skew_s),
            where=facts.address, remedy=_("set both by NTP"),
        )  # fmt: skip


def _left_over(facts: EngineFacts, __: Requirements) -> Iterator[Finding]:
    stale = [row for row in facts.containers if row.run and not row.has_live_run]
    alive = [row for row in facts.containers if row.run and row.has_live_run]
    if alive:
        rows, stop = [f"{row.run} ({row.owner})" for row in alive], f"{alive[0].run} --data ITS-DATA-DISK"
        yield make_live_runs_finding(rows, place=_("on this engine"), where="engine", stop_args=stop)
    if stale:
        rows = [f"{row.name} ({row.state}, {row.owner})" for row in stale]
        yield Finding(
            id="stale-containers", title=_("containers of ended runs are still there"), level="warning",
            seen=listed(rows), where=_("engine"),
            remedy=f"docker rm -f {' '.join(row.name for row in stale[:10])}", breaks=("port-taken",),
        )  # fmt: skip


check_engine = CheckGroup(prerequisite=_answers, checks=(_new_enough, _gives_gpus, _room, _left_over, _clock))
"""What is wrong with the engine."""


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _image(state: str, target: str) -> Iterator[Finding]:
    if state != "current":
        says = {"missing": _("is not built yet"), "outdated": _("is out of date")}
        yield Finding(
            id=f"image-{state}",
            title=_("the image of {target} {says}").format(target=target, says=says[state]), level="note",
            where=f"rlbox/{target}",
            remedy=f"rlbox build {target}",
        )  # fmt: skip


check_image_state = CheckGroup(checks=(_image,))
"""A note when a target's image is missing or is out of date."""


def probe_engine() -> EngineFacts:
    from rlbox.engine.connection import connect_engine

    try:
        info, containers = connect_engine().info(), connect_engine().list_containers(TARGET_LABEL)
    except EngineError as error:
        return EngineFacts(error=error.what, address=error.where, remedy=error.next_step)
    root = str(info.get("DockerRootDir", ""))
    return EngineFacts(
        address=open_engine_connection_address(),
        version=_numbers(str(info.get("ServerVersion", ""))),
        gpu_mechanisms=probe_gpu_support(
            info, open_engine_connection_address(), is_local=is_engine_local() and not is_in_image()
        ).methods,
        data_root=root,
        free_bytes=get_free_bytes(Path(root)) if root and is_engine_local() and Path(root).is_dir() else None,
        containers=tuple(map(_container, containers)),
        clock_skew_s=_skew(str(info.get("SystemTime", ""))),
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.partition("+")[0].partition("-")[0].split(".")
    return tuple(number for part in parts if (number := whole_number(part)) is not None)


def _container(row: Mapping[str, Any]) -> EngineContainer:
    labels = row.get("Labels") or {}
    names = [str(name).lstrip("/") for name in row.get("Names") or ()]
    return EngineContainer(
        name=names[0] if names else str(row.get("Id", ""))[:12],
        run=str(labels.get(RUN_LABEL, "")),
        state=str(row.get("State", "")),
        owner=_("uid {labels}").format(labels=labels.get(OWNER_LABEL, "unknown")),
        is_disk_locked=any(_may_be_held(Path(str(mount.get("Source", "")))) for mount in row.get("Mounts") or ()),
    )


def _may_be_held(folder: Path) -> bool:
    """Return whether a living rlbox holds a folder as its data disk; one that cannot be asked may be held."""
    try:
        return is_regular_file(folder.resolve() / LOCK_FILE) and find_lock_owner(folder.resolve()) is not None
    except (OSError, NodeError):
        return True


def _skew(text: str) -> float:
    """Return how far the engine's clock is ahead, seconds; its answer has more digits than Python reads."""
    with contextlib.suppress(ValueError):
        told = datetime.datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
        zone = text[19:].lstrip(".0123456789")
        return told.timestamp() - time.time() if zone == "Z" else 0.0
    return 0.0
