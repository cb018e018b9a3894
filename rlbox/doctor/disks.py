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
from dataclasses import dataclass, field
from typing import NamedTuple

from rlbox.amounts import GIB, MIB, decimal_size_text, exact_duration_text
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding, Level
from rlbox.i18n import _

_TMP_ERROR, _TMP_WARNING = 64 * MIB, 512 * MIB
_DATA_ERROR = 2 * GIB
"""Room on the data disk without which nothing runs, as fix disk-full has it."""
_INODES = 1000
_PROBE_BYTES = 256 << 10
_SLOW_S = 10.0
_BREAKS = {
    "data": ("folder-*", "compile-caches", "dataset-lock-held", "env-not-exported"),
    "tmp": ("ray-*", "torch-*", "jit-*", "extension-*", "compile-caches", "unknown-uid", "dataset-lock-held"),
}
# Variables whose folder a program of the stack makes and writes to; it need not be there, but it must be possible.
DIRECTORY_VARIABLES = (
    "FLASHINFER_WORKSPACE_BASE", "HF_DATASETS_CACHE", "HF_HOME", "HF_HUB_CACHE", "NUMBA_CACHE_DIR", "RAY_TMPDIR",
    "PYTHONPYCACHEPREFIX", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TRITON_CACHE_DIR",
    "VLLM_CACHE_ROOT", "WANDB_DIR", "XDG_CACHE_HOME",
)  # fmt: skip


class RunDirectory(NamedTuple):
    """A directory that a run writes to; `data_tmp_or_variable_name` is data, tmp, or the variable that names it."""

    data_tmp_or_variable_name: str
    path: str


def _make_finding(
    directory: RunDirectory, problem: str, title: str, seen: str, remedy: str, *, level: Level = "error",
    covers: tuple[str, ...] = (), repair: tuple[str, ...] = (),
) -> Finding:  # fmt: skip
    titles = {"data": _("the data disk"), "tmp": _("the folder of temporary files")}
    subject = titles.get(
        directory.data_tmp_or_variable_name, _("the folder of {role}").format(role=directory.data_tmp_or_variable_name)
    )
    prefix = {"data": "data-disk", "tmp": "tmp"}.get(directory.data_tmp_or_variable_name, "folder")
    return Finding(
        id=f"{prefix}-{problem}",
        title=title.format(title=subject),
        level=level,
        seen=seen,
        where=directory.path
        if directory.data_tmp_or_variable_name in titles
        else f"{directory.data_tmp_or_variable_name}={directory.path}",
        remedy=remedy,
        repair=repair,
        breaks=_BREAKS.get(directory.data_tmp_or_variable_name, ("compile-caches",)) if level == "error" else (),
        covers=covers,
    )


@dataclass
class _Examination:
    """What was found of one directory, and the disk that it is on (0: not known)."""

    device: int = 0
    findings: list[Finding] = field(default_factory=list)


def list_run_directories(environ: Mapping[str, str], data_mount: str) -> list[RunDirectory]:
    """Return the directories to look at; a variable that names none is left out."""
    temporary = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - where programs write
    named = [RunDirectory(name, environ[name]) for name in DIRECTORY_VARIABLES if environ.get(name, "").startswith("/")]
    return [RunDirectory("data", data_mount), RunDirectory("tmp", temporary), *named]


def check_host_data_by_writing(directories: Sequence[RunDirectory], requirements: Requirements) -> Iterator[Finding]:
    """Yield what is wrong with a directory of this host that is to be the data disk."""
    if not directories:
        remedy = _("give --data DIR, or set RLBOX_DATA or disk.host")
        yield Finding(id="data-disk-unnamed", title=_("no data disk is named"), where="disk.host", remedy=remedy)
    yield from check_directories_by_writing(directories, requirements, on_host=True)


def check_directories_by_writing(
    directories: Sequence[RunDirectory], requirements: Requirements, *, on_host: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with the directories; a full disk that several of them are on is one finding.

    Parameters
    ----------
    on_host
        The data disk is to be made on this host, not mounted into a container.
    """
    done: dict[int, _Examination] = {}

    def examine(number: int, directory: RunDirectory) -> None:
        done[number] = _examine(directory, requirements, on_host)

    # A dead network disk holds a thread in the kernel.
    threads = [threading.Thread(target=examine, args=row, daemon=True) for row in enumerate(directories)]
    for thread in threads:
        thread.start()
    full_disks: set[tuple[str, int]] = set()
    for number, thread in enumerate(threads):
        thread.join(_SLOW_S)
        for finding in done[number].findings if number in done else [_make_slow_finding(directories[number])]:
            shared = (finding.id.rpartition("-")[2], done[number].device if number in done else 0)
            if shared not in full_disks:
                yield finding
            if shared[0] in ("full", "inodes"):
                full_disks.add(shared)


@functools.cache
def is_responsive(path: str) -> bool:
    """Return whether a path is answered about in 2 s, be it there or not; one of a server that is away never is."""
    thread = threading.Thread(target=os.path.lexists, args=(path,), daemon=True)
    thread.start()
    thread.join(2.0)
    return not thread.is_alive()


def _examine(directory: RunDirectory, requirements: Requirements, on_host: bool) -> _Examination:
    is_main = directory.data_tmp_or_variable_name in ("data", "tmp")
    path = directory.path if is_main else _find_existing_parent(directory.path)
    if not os.path.isdir(path):
        return _Examination(findings=[_make_missing_finding(directory, path, on_host)])
    status, space = os.stat(path), os.statvfs(path)
    examination = _Examination(device=status.st_dev)
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
    except OSError as error:
        examination.findings.append(_make_write_finding(directory, path, error, status, space))
        return examination
    if space.f_files and space.f_favail < _INODES:
        seen = _("{inodes_free} of {inodes} inodes are free").format(inodes_free=space.f_favail, inodes=space.f_files)
        remedy = _("remove old sessions, caches and checkpoints: many small files fill it, not large ones")
        title = _("{title} can take hardly any more files")
        examination.findings.append(_make_finding(directory, "inodes", title, seen, remedy, covers=("disk-full",)))
    elif is_main and space.f_blocks:
        examination.findings += _check_free_space(directory, requirements, space)
    return examination


def _find_existing_parent(path: str) -> str:
    """Return the path itself, or the directory in which it would be made."""
    while path != "/" and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _check_free_space(
    directory: RunDirectory, requirements: Requirements, space: os.statvfs_result
) -> Iterator[Finding]:
    is_data = directory.data_tmp_or_variable_name == "data"
    free = space.f_bavail * space.f_frsize
    need = requirements.disk_gib * GIB if is_data else _TMP_WARNING
    if free >= need:
        return
    tight = free < (min(need, _DATA_ERROR) if is_data else _TMP_ERROR)
    more = (
        _(", or name another disk with --data DIR; `rlbox plan JOB` prints the space that a job needs")
        if is_data
        else ""
    )
    yield _make_finding(
        directory,
        "full", _("{title} is too full"),
        _("{free} free of {total}, {need} are needed").format
            (free=decimal_size_text(free), total=decimal_size_text(space.f_blocks * space.f_frsize),
             need=decimal_size_text(need)),
        _("free space there{more}").format(more=more), level="error" if tight else "warning",
        covers=("disk-full", "paths-off-data-disk"),
    )  # fmt: skip


def _make_missing_finding(directory: RunDirectory, path: str, on_host: bool) -> Finding:
    quoted = shlex.quote(directory.path)
    repair: tuple[str, ...] = ()
    if os.path.lexists(path):
        title, seen = _("{title} is not a directory"), _("there is something else")
        remedy = _("move the existing files away, then: mkdir -p {path}").format(path=quoted)
    else:
        title, seen = _("{title} is missing"), _("no such folder")
        remedy = _("mkdir -p {path}").format(path=quoted)
        repair = ("folder", directory.path) if directory.data_tmp_or_variable_name != "data" else ()
    if directory.data_tmp_or_variable_name == "data" and on_host:
        remedy = _("mkdir -p {where} (or mount it there), or name another with --data DIR").format(where=quoted)
    elif directory.data_tmp_or_variable_name == "data":
        remedy = _("mount it: docker run --volume DIR:{path}; rlbox does with --data DIR").format(path=directory.path)
    covers = ("disk-full", "paths-off-data-disk") if directory.data_tmp_or_variable_name == "data" else ()
    return _make_finding(directory, "missing", title, f"{path}: {seen}", remedy, covers=covers, repair=repair)


def _make_write_finding(
    directory: RunDirectory, path: str, error: OSError, status: os.stat_result, space: os.statvfs_result
) -> Finding:
    reason = error.strerror or str(error)
    match error.errno:
        case errno.EROFS:
            remedy = _("mount it writable (without :ro); a disk that turned read-only has errors: `dmesg`")
            return _make_finding(
                directory, "read-only", _("{title} is read-only"), reason, remedy, covers=("permission-denied",)
            )
        case errno.ENOSPC | errno.EDQUOT:
            seen = _("{error}: {free} free of {total}").format(
                error=reason, free=decimal_size_text(space.f_bavail * space.f_frsize),
                total=decimal_size_text(space.f_blocks * space.f_frsize),
            )  # fmt: skip
            more = _(", or name another disk with --data DIR") if directory.data_tmp_or_variable_name == "data" else ""
            remedy = _("free space there{role}").format(role=more)
            covers = ("disk-full", "paths-off-data-disk")
            return _make_finding(directory, "full", _("{title} is full"), seen, remedy, covers=covers)
        case errno.EIO:
            remedy = _("name another path: `dmesg` shows the problem of this disk")
            return _make_finding(directory, "broken", _("{title} has errors"), reason, remedy)
        case __:
            user = _("uid {getuid}").format(getuid=os.getuid())
            owner = _("{target} is uid {st_uid}'s, mode {s_imode:04o}").format(
                target=path, st_uid=status.st_uid, s_imode=stat.S_IMODE(status.st_mode)
            )
            mode = "1777" if directory.data_tmp_or_variable_name == "tmp" else "0755"
            return _make_finding(
                directory,
                "denied",
                _("{title} cannot be written by this user"),
                _("{error} for {who}; {owner}").format(error=reason, who=user, owner=owner),
                _("give it to {who}: chown or chmod on the host, or start the container as its owner").format(who=user),
                repair=("mode", directory.path, mode) if status.st_uid == os.getuid() else (),
                covers=("permission-denied",),
            )


def _make_slow_finding(directory: RunDirectory) -> Finding:
    unmount = _("umount -f -l {path}").format(path=shlex.quote(directory.path))
    return _make_finding(
        directory,
        "slow", _("{title} does not answer"), _("no answer in {slow_s}").format(slow_s=exact_duration_text(_SLOW_S)),
        _("bring back the server of that mount (a line of /proc/mounts), or take it off: {taken_off}").format
            (taken_off=unmount), level="warning",
    )  # fmt: skip
