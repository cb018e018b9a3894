"""Directories that a run writes to: data disk, temporary files, caches."""

from __future__ import annotations

import errno
import functools
import os
import shlex
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlbox.amounts import GIB, MIB, limit_text, size_text
from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding
from rlbox.i18n import _

_TMP_ERROR, _TMP_WARNING = 64 * MIB, 512 * MIB
_DATA_ERROR = 2 * GIB
"""Room on the data disk without which nothing runs, as fix disk-full has it."""
_INODES = 1000
_PROGRAMS = ("ray-*", "torch-*", "jit-*", "extension-*", "compile-caches", "unknown-uid", "dataset-lock-held")
_DATA = ("folder-*", "compile-caches", "dataset-lock-held", "env-not-exported")


@dataclass(frozen=True, kw_only=True)
class DirectoryFacts:
    """A folder. `role` is data, tmp, or the variable that names it; `error_text` says why nothing can be written there.

    `problem` is missing, file, read-only, denied, full, broken, slow, or empty for a folder that was written to. Sizes
    in bytes.
    """

    role: str
    path: str
    problem: str = ""
    error_text: str = ""
    owner_text: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    total_inodes: int = 0
    free_inodes: int = 0
    is_own: bool = False


def check_directories(
    directories: Sequence[DirectoryFacts], requirements: Requirements, user_text: str
) -> list[Finding]:
    """Return what is wrong with the folders, one finding for what several of them share.

    Parameters
    ----------
    user_text
        The user that writes: `uid 1000`.
    """
    found: list[Finding] = []
    told: set[tuple[str, int, int]] = set()
    for place in directories:
        for finding in check_directory(place, requirements, user_text):
            shared = (finding.id.rpartition("-")[2], place.total_bytes, place.free_bytes >> 24)
            if finding.id.endswith(("-full", "-inodes")) and shared in told:
                continue
            told.add(shared)
            found.append(finding)
    return found


def _name(place: DirectoryFacts) -> str:
    return {"data": "data-disk", "tmp": "tmp"}.get(place.role, "folder")


def _title(place: DirectoryFacts) -> str:
    titles = {"data": _("the data disk"), "tmp": _("the folder of temporary files")}
    return titles.get(place.role, _("the folder of {role}").format(role=place.role))


def _where(place: DirectoryFacts) -> str:
    return place.path if place.role in ("data", "tmp") else f"{place.role}={place.path}"


def _breaks(place: DirectoryFacts) -> tuple[str, ...]:
    return {"data": _DATA, "tmp": _PROGRAMS}.get(place.role, ("compile-caches",))


def _writable(place: DirectoryFacts, __: Requirements, who: str) -> Iterator[Finding]:
    name = _name(place)
    if place.problem:
        yield Finding(
            id=f"{name}-{'missing' if place.problem == 'file' else place.problem}",
            title=_("{title} {says}").format(title=_title(place), says=_SAYS[place.problem]),
            level="warning" if place.problem == "slow" else "error",
            seen=_seen(place, who),
            where=_where(place),
            remedy=_remedy(place, who),
            repair=_repair(place),
            breaks=_breaks(place),
            covers=_COVERS.get(f"{name}-{place.problem}", ()),
        )


def _room(place: DirectoryFacts, requirements: Requirements, __: str) -> Iterator[Finding]:
    name = _name(place)
    if place.total_inodes and place.free_inodes < _INODES:
        yield Finding(
            id=f"{name}-inodes",
            title=_("{title} can take hardly any more files").format(title=_title(place)),
            seen=_("{inodes_free} of {inodes} inodes are free").format(
                inodes_free=place.free_inodes, inodes=place.total_inodes
            ),
            where=_where(place),
            remedy=_("remove old sessions, caches and checkpoints: many small files fill it, not large ones"),
            breaks=_breaks(place),
            covers=("disk-full",),
        )
    elif place.role in ("data", "tmp") and place.total_bytes:
        yield from _space(place, requirements, name)


def _space(place: DirectoryFacts, requirements: Requirements, name: str) -> Iterator[Finding]:
    data = place.role == "data"
    need = requirements.disk_gib * GIB if data else _TMP_WARNING
    if place.free_bytes >= need:
        return
    tight = place.free_bytes < (min(need, _DATA_ERROR) if data else _TMP_ERROR)
    more = _(", or name another disk with --data DIR; what a job needs says `rlbox plan JOB`") if data else ""
    yield Finding(
        id=f"{name}-full",
        title=_("{title} is too full").format(title=_title(place)),
        level="error" if tight else "warning",
        seen=_("{free} free of {total}, {need} are needed").format(
            free=size_text(place.free_bytes), total=size_text(place.total_bytes), need=size_text(need)
        ),
        where=_where(place),
        remedy=_("free space there{more}").format(more=more),
        breaks=_breaks(place) if tight else (),
        covers=("disk-full", "paths-off-data-disk"),
    )


def _named(places: Sequence[DirectoryFacts], __: Requirements, who: str) -> Iterator[Finding]:
    if not places:
        remedy = _("give --data DIR, or set RLBOX_DATA or disk.host")
        yield Finding(id="data-disk-unnamed", title=_("no data disk is named"), where="disk.host", remedy=remedy)


def _usable(places: Sequence[DirectoryFacts], requirements: Requirements, who: str) -> Iterator[Finding]:
    """Judge a folder of this host: it is mounted by nobody but the host."""
    kinds = {place.path: place.problem for place in places}
    for row in check_directories(places, requirements, who):
        match kinds.get(row.where):
            case "missing":
                remedy = _("mkdir -p {where} (or mount it there), or name another with --data DIR").format(
                    where=shlex.quote(row.where)
                )
                yield replace(row, remedy=remedy)
            case "file":
                yield replace(row, remedy="name another with --data DIR")
            case _:
                yield row


check_directory = CheckGroup(prerequisite=_writable, checks=(_room,))
"""What is wrong with one folder, for the user `who` that writes."""


_SAYS = {
    "missing": _("is missing"),
    "file": _("is no directory"),
    "read-only": "is read-only",
    "denied": _("cannot be written by this user"),
    "full": _("is full"),
    "broken": _("has errors"),
    "slow": _("does not answer"),
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


def _seen(place: DirectoryFacts, who: str) -> str:
    if place.problem == "denied":
        return _("{error} for {who}; {owner}").format(error=place.error_text, who=who, owner=place.owner_text)
    if place.problem == "full":
        return _("{error}: {free} free of {total}").format(
            error=place.error_text, free=size_text(place.free_bytes), total=size_text(place.total_bytes)
        )
    return place.error_text


def _remedy(place: DirectoryFacts, who: str) -> str:
    match place.problem:
        case "missing" | "file" if place.role == "data":
            return _("mount it: docker run --volume DIR:{path}; rlbox does with --data DIR").format(path=place.path)
        case "missing":
            return _("mkdir -p {path}").format(path=place.path)
        case "file":
            return _("move what is there out of the way, then: mkdir -p {path}").format(path=place.path)
        case "read-only":
            return _("mount it writable (without :ro); a disk that turned read-only has errors: `dmesg`")
        case "denied":
            return _("give it to {who}: chown or chmod on the host, or start the container as its owner").format(
                who=who
            )
        case "full":
            return _("free space there{role}").format(
                role=_(", or name another disk with --data DIR") if place.role == "data" else ""
            )
        case "broken":
            return _("name another place: `dmesg` shows what is wrong with this disk")
        case _:
            taken_off = _("umount -f -l {path}").format(path=shlex.quote(place.path))
            return _(
                "bring back the server of that mount (a line of /proc/mounts), or take it off: {taken_off}"
            ).format(taken_off=taken_off)


def _repair(place: DirectoryFacts) -> tuple[str, ...]:
    if place.problem == "missing" and place.role != "data":
        return ("folder", place.path)
    if place.problem == "denied" and place.is_own:
        return ("mode", place.path, "1777" if place.role == "tmp" else "0755")
    return ()


check_data_disk = CheckGroup(prerequisite=_named, checks=(_usable,))
"""What is wrong with a host's folder that is to be the data disk."""


_PROBE_BYTES = 256 << 10
_SLOW_S = 4.0
# Variables whose folder a program of the stack makes and writes to; it need not be there, but it must be possible.
DIRECTORY_VARIABLES = (
    "FLASHINFER_WORKSPACE_BASE", "HF_DATASETS_CACHE", "HF_HOME", "HF_HUB_CACHE", "NUMBA_CACHE_DIR", "RAY_TMPDIR",
    "PYTHONPYCACHEPREFIX", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TRITON_CACHE_DIR",
    "VLLM_CACHE_ROOT", "WANDB_DIR", "XDG_CACHE_HOME",
)  # fmt: skip


class RunDirectory(NamedTuple):
    """A folder that a run writes to; `role` is data, tmp, or the variable that names it."""

    role: str
    path: str


def find_directories(environ: Mapping[str, str], data_mount: str) -> list[RunDirectory]:
    """Return the folders to look at; a variable that names none is left out."""
    temporary = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - where programs write
    named = [RunDirectory(name, environ[name]) for name in DIRECTORY_VARIABLES if environ.get(name, "").startswith("/")]
    return [RunDirectory("data", data_mount), RunDirectory("tmp", temporary), *named]


def probe_directories(directories: Sequence[RunDirectory]) -> tuple[DirectoryFacts, ...]:
    """Return the state of each folder; one that does not answer in 4 s (a dead network disk) is called slow."""
    found: dict[int, DirectoryFacts] = {}

    def look(number: int, role: str, path: str) -> None:
        try:
            found[number] = _probe(role, path)
        except OSError as error:
            found[number] = DirectoryFacts(
                role=role, path=path, problem=_kind(error), error_text=error.strerror or str(error)
            )

    threads = [
        threading.Thread(target=look, args=(number, role, path), daemon=True)
        for number, (role, path) in enumerate(directories)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SLOW_S)
    waited = _("no answer in {slow_s}").format(slow_s=limit_text(_SLOW_S))
    return tuple(
        found.get(number) or DirectoryFacts(role=role, path=path, problem="slow", error_text=waited)
        for number, (role, path) in enumerate(directories)
    )


@functools.cache
def is_responsive(path: str) -> bool:
    """Return whether a path is answered about in 2 s, be it there or not; one of a server that is away never is."""
    thread = threading.Thread(target=os.path.lexists, args=(path,), daemon=True)
    thread.start()
    thread.join(_SLOW_S / 2)
    return not thread.is_alive()


def _probe(role: str, path: str) -> DirectoryFacts:
    target = path if role in ("data", "tmp") else _nearest(path)
    if not os.path.isdir(target):
        kind = "file" if os.path.lexists(target) else "missing"
        words = _("there is something else") if kind == "file" else _("no such folder")
        return DirectoryFacts(role=role, path=path, problem=kind, error_text=f"{target}: {words}")
    facts, room = os.stat(target), os.statvfs(target)
    kind, error = _write(target)
    return DirectoryFacts(
        role=role,
        path=path,
        problem=kind,
        error_text=error,
        owner_text=_("{target} is uid {st_uid}'s, mode {s_imode:04o}").format(
            target=target, st_uid=facts.st_uid, s_imode=stat.S_IMODE(facts.st_mode)
        ),
        total_bytes=room.f_blocks * room.f_frsize,
        free_bytes=room.f_bavail * room.f_frsize,
        total_inodes=room.f_files,
        free_inodes=room.f_favail,
        is_own=facts.st_uid == os.getuid(),
    )


def _nearest(path: str) -> str:
    """Return the path itself, or the folder in which it would be made."""
    while path != "/" and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _write(folder: str) -> tuple[str, str]:
    """Return what stands in the way of writing there, as a kind and in words; empty when it can be done."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
    except OSError as error:
        return _kind(error), error.strerror or str(error)
    return "", ""


def _kind(error: OSError) -> str:
    kinds = {errno.EROFS: "read-only", errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EIO: "broken"}
    return kinds.get(error.errno or 0, "denied")
