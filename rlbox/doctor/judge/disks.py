"""Judge the folders that a run writes to: the data disk, temporary files, caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlbox.amounts import GIB, MIB, memory_text
from rlbox.doctor.facts import Demands
from rlbox.findings import Finding

_TMP_ERROR, _TMP_WARNING = 64 * MIB, 512 * MIB
_INODES = 1000
_PROGRAMS = ("ray-*", "torch-*", "jit-*", "extension-*", "compile-caches", "unknown-uid", "dataset-lock-held")
_DATA = ("folder-*", "compile-caches", "dataset-lock-held", "env-not-exported")


@dataclass(frozen=True, kw_only=True)
class PlaceFacts:
    """A folder. `role` is data, tmp, or the variable that names it; `error` says why nothing can be written there.

    `kind` is missing, file, read-only, denied, full, slow, or empty for a folder that was written to. Sizes in
    bytes.
    """

    role: str
    path: str
    kind: str = ""
    error: str = ""
    owner: str = ""
    total: int = 0
    free: int = 0
    inodes: int = 0
    inodes_free: int = 0
    mine: bool = False


def judge_places(places: Sequence[PlaceFacts], demands: Demands, who: str) -> list[Finding]:
    """Return what is wrong with the folders, one finding for what several of them share.

    Parameters
    ----------
    who
        The user that writes: `uid 1000`.
    """
    found: list[Finding] = []
    told: set[tuple[str, int, int]] = set()
    for place in places:
        for finding in _judge(place, demands, who):
            shared = (finding.id.rpartition("-")[2], place.total, place.free >> 24)
            if finding.id.endswith(("-full", "-inodes")) and shared in told:
                continue
            told.add(shared)
            found.append(finding)
    return found


def _judge(place: PlaceFacts, demands: Demands, who: str) -> Iterator[Finding]:
    name = {"data": "data-disk", "tmp": "tmp"}.get(place.role, "folder")
    title = {"data": "the data disk", "tmp": "the folder of temporary files"}.get(
        place.role, f"the folder of {place.role}"
    )
    where = place.path if place.role in ("data", "tmp") else f"{place.role}={place.path}"
    breaks = _PROGRAMS if place.role == "tmp" else _DATA if place.role == "data" else ("compile-caches",)
    if place.kind:
        yield Finding(
            id=f"{name}-{_ID[place.kind]}",
            title=f"{title} {_SAYS[place.kind]}",
            level="warning" if place.kind == "slow" else "error",
            seen=_seen(place, who),
            where=where,
            remedy=_remedy(place, who),
            repair=_repair(place),
            breaks=breaks,
            covers=_COVERS.get(f"{name}-{place.kind}", ()),
        )
    elif place.inodes and place.inodes_free < _INODES:
        yield Finding(
            id=f"{name}-inodes",
            title=f"{title} can take hardly any more files",
            seen=f"{place.inodes_free} of {place.inodes} inodes are free",
            where=where,
            remedy="remove old sessions, caches and checkpoints: many small files fill it, not large ones",
            breaks=breaks,
            covers=("disk-full",),
        )
    else:
        yield from _space(place, demands, name, title, where, breaks)


def _space(
    place: PlaceFacts, demands: Demands, name: str, title: str, where: str, breaks: tuple[str, ...]
) -> Iterator[Finding]:
    if place.role not in ("data", "tmp") or not place.total:
        return
    need = demands.need_gib * GIB if place.role == "data" else _TMP_WARNING
    if place.free >= need:
        return
    tight = place.role == "data" or place.free < _TMP_ERROR
    yield Finding(
        id=f"{name}-full",
        title=f"{title} is too full",
        level="error" if tight else "warning",
        seen=f"{memory_text(place.free)} free of {memory_text(place.total)}, {memory_text(int(need))} are needed",
        where=where,
        remedy="free space there" + (", or name another disk with --data DIR" if place.role == "data" else ""),
        breaks=breaks if tight else (),
        covers=("disk-full", "paths-off-data-disk"),
    )


_ID = {
    "missing": "missing",
    "file": "missing",
    "read-only": "read-only",
    "denied": "denied",
    "full": "full",
    "slow": "slow",
}
_SAYS = {
    "missing": "is missing",
    "file": "is no directory",
    "read-only": "is read-only",
    "denied": "cannot be written by this user",
    "full": "is full",
    "slow": "does not answer",
}
_COVERS = {
    "data-disk-full": ("disk-full", "paths-off-data-disk"),
    "data-disk-missing": ("disk-full", "paths-off-data-disk"),
    "tmp-full": ("disk-full",),
    "tmp-denied": ("permission-denied",),
    "data-disk-denied": ("permission-denied",),
    "data-disk-read-only": ("permission-denied",),
    "folder-denied": ("permission-denied",),
}


def _seen(place: PlaceFacts, who: str) -> str:
    if place.kind == "denied":
        return f"{place.error} for {who}; {place.owner}"
    if place.kind == "full":
        return f"{place.error}: {memory_text(place.free)} free of {memory_text(place.total)}"
    return place.error


def _remedy(place: PlaceFacts, who: str) -> str:
    match place.kind:
        case "missing" | "file" if place.role == "data":
            return f"mount it: docker run --volume DIR:{place.path}; rlbox does with --data DIR"
        case "missing" | "file":
            return f"mkdir -p {place.path}"
        case "read-only":
            return "mount it writable (without :ro); a disk that turned read-only has errors: `dmesg`"
        case "denied":
            return f"give it to {who}: chown or chmod on the host, or start the container as its owner"
        case "full":
            return "free space there" + (", or name another disk with --data DIR" if place.role == "data" else "")
        case _:
            return "look at the mount: a network disk whose server is away blocks everything that touches it"


def _repair(place: PlaceFacts) -> tuple[str, ...]:
    if place.kind == "missing" and place.role != "data":
        return ("folder", place.path)
    if place.kind == "denied" and place.mine:
        return ("mode", place.path, "1777" if place.role == "tmp" else "0755")
    return ()
