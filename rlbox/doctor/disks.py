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
from typing import Any, NamedTuple

from rlbox.amounts import GIB, MIB, decimal_size_text, exact_duration_text
from rlbox.doctor.catalogue import make_finding
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

    @property
    def is_data(self) -> bool:
        return self.data_tmp_or_variable_name == "data"

    @property
    def is_tmp(self) -> bool:
        return self.data_tmp_or_variable_name == "tmp"

    def find_path_or_existing_ancestor(self) -> str:
        """Return the path, or for one that a program makes itself the directory in which it would be made."""
        path = self.path
        while not (self.is_data or self.is_tmp or path == "/" or os.path.lexists(path)):
            path = os.path.dirname(path)
        return path

    def make_finding(self, problem: str, text_id: str, *, level: Level = "error", **values: Any) -> Finding:
        name = self.data_tmp_or_variable_name
        subject = {"data": _("the data disk"), "tmp": _("the folder of temporary files")}.get(name)
        return make_finding(
            f"directory-{text_id}",
            id=f"{ {'data': 'data-disk', 'tmp': 'tmp'}.get(name, 'folder') }-{problem}",
            level=level,
            where=self.path if subject else f"{name}={self.path}",
            breaks=_BREAKS.get(name, ("compile-caches",)) if level == "error" else (),
            title=subject or _("the folder of {role}").format(role=name),
            quoted=shlex.quote(self.path),
            **values,
        )


def list_run_directories(environ: Mapping[str, str], data_mount: str) -> list[RunDirectory]:
    temporary = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - where programs write
    named = [RunDirectory(name, environ[name]) for name in DIRECTORY_VARIABLES if environ.get(name, "").startswith("/")]
    return [RunDirectory("data", data_mount), RunDirectory("tmp", temporary), *named]


def check_host_dirs_by_writing_or_report_none(
    directories: Sequence[RunDirectory], requirements: Requirements
) -> Iterator[Finding]:
    if not directories:
        yield make_finding("data-disk-unnamed")
    yield from check_directories_by_writing(directories, requirements, on_host=True)


def check_directories_by_writing(
    directories: Sequence[RunDirectory], requirements: Requirements, *, on_host: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with the directories; a full disk that several of them are on is one finding."""
    done: dict[RunDirectory, list[Finding]] = {}

    def examine(directory: RunDirectory) -> None:
        done[directory] = _examine(directory, requirements, on_host)

    # A dead network disk holds a thread in the kernel.
    threads = [threading.Thread(target=examine, args=(directory,), daemon=True) for directory in directories]
    for thread in threads:
        thread.start()
    full_disks: set[tuple[str, int]] = set()
    for directory, thread in zip(directories, threads, strict=True):
        thread.join(_SLOW_S)
        if directory not in done:
            yield directory.make_finding("slow", "slow", level="warning", slow_s=exact_duration_text(_SLOW_S))
        for finding in done.get(directory, ()):
            if (problem := finding.id.rpartition("-")[2]) in ("full", "inodes"):
                disk = problem, os.stat(directory.find_path_or_existing_ancestor()).st_dev
                if disk in full_disks:
                    continue
                full_disks.add(disk)
            yield finding


@functools.cache
def is_path_responsive_cached(path: str) -> bool:
    """Return whether a path is answered about in 2 s, be it there or not; one of a server that is away never is."""
    thread = threading.Thread(target=os.path.lexists, args=(path,), daemon=True)
    thread.start()
    thread.join(2.0)
    return not thread.is_alive()


def _examine(directory: RunDirectory, requirements: Requirements, on_host: bool) -> list[Finding]:
    path = directory.find_path_or_existing_ancestor()
    if not os.path.isdir(path):
        return [_make_missing_finding(directory, path, on_host)]
    status, space = os.stat(path), os.statvfs(path)
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
    except OSError as error:
        return [_make_write_finding(directory, path, error, status, space)]
    return list(_check_free_space(directory, requirements, space))


def _check_free_space(
    directory: RunDirectory, requirements: Requirements, space: os.statvfs_result
) -> Iterator[Finding]:
    if space.f_files and space.f_favail < _INODES:
        yield directory.make_finding("inodes", "inodes", inodes_free=space.f_favail, inodes=space.f_files)
        return
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    need = {"data": requirements.disk_gib * GIB, "tmp": _TMP_WARNING}.get(directory.data_tmp_or_variable_name, 0)
    if free >= need or not total:
        return
    more = _(", or name another disk with --data DIR; `rlbox plan JOB` prints the space that a job needs")
    yield directory.make_finding(
        "full", "too-full",
        level="error" if free < (min(need, _DATA_ERROR) if directory.is_data else _TMP_ERROR) else "warning",
        free=decimal_size_text(free), total=decimal_size_text(total), need=decimal_size_text(need),
        more=more if directory.is_data else "",
    )  # fmt: skip


def _make_missing_finding(directory: RunDirectory, path: str, on_host: bool) -> Finding:
    if os.path.lexists(path):
        return directory.make_finding("missing", "missing-file", path=path)
    if directory.is_data:
        return directory.make_finding("missing", "missing-on-host" if on_host else "missing-in-container", path=path)
    return directory.make_finding("missing", "missing", path=path)


def _make_write_finding(
    directory: RunDirectory, path: str, error: OSError, status: os.stat_result, space: os.statvfs_result
) -> Finding:
    reason = error.strerror or str(error)
    match error.errno:
        case errno.EROFS:
            return directory.make_finding("read-only", "read-only", reason=reason)
        case errno.ENOSPC | errno.EDQUOT:
            return directory.make_finding(
                "full", "full", reason=reason,
                free=decimal_size_text(space.f_bavail * space.f_frsize),
                total=decimal_size_text(space.f_blocks * space.f_frsize),
                more=_(", or name another disk with --data DIR") if directory.is_data else "",
            )  # fmt: skip
        case errno.EIO:
            return directory.make_finding("broken", "broken", reason=reason)
        case __:
            return directory.make_finding(
                "denied", "denied", reason=reason, path=path, uid=os.getuid(), owner=status.st_uid,
                mode=stat.S_IMODE(status.st_mode),
            )  # fmt: skip
