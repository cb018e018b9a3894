"""The logs that a path means: a file, a folder of them, a run, an archive, standard input; and their bytes."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rlbox.errors import NodeError, SpecError
from rlbox.i18n import _
from rlbox.logs.run_logs import list_logs
from rlbox.system.compression import zstd
from rlbox.system.safe_files import open_regular_fd

BLOCK_BYTES = 256 * 1024
"""Bytes of one read: what fits a core's cache is scanned faster, by a sixth than 1 MiB, nearly twice than 4 MiB."""
MAX_FILES = 4096
_DEEPEST = 8
_COMPRESSED_SUFFIXES = (".gz", ".zst", ".zstd")
_LOG = re.compile(
    r"(?i)\.(?:log|out|err|stderr|stdout|trace)(?:\.\d+)?(?:\.(?:gz|zst|zstd))?$|^(?:nohup|stdout|stderr|output|console|messages"
    r"|dmesg|syslog|log)[\w.-]*$|(?:log|logs|stderr|stdout|output|console|err|rank_?\d+|slurm-\d+)[\w.-]*\.txt$"
)
_LEFT = {"evidence", "__pycache__", ".git", "node_modules", "site-packages", ".venv"}
_ARCHIVE = (".tar", ".tar.gz", ".tgz", ".tar.zst")


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """One log and its shown name; without a path it is standard input."""

    name: str
    path_unless_stdin: Path | None = None
    archive_member: str = ""


def find_sources(paths: list[str]) -> list[LogSource]:
    """Return the logs that the words of a command line mean, in order, each once.

    Raises
    ------
    SpecError
        There is nothing of that name, or no log in a folder; or more than `MAX_FILES`.
    """
    found: list[LogSource] = []
    for name in paths:
        if name == "-":
            found.append(LogSource(name="-"))
            continue
        path = Path(name)
        if path.is_dir():
            found += _in_folder(path, name if len(paths) > 1 else "")
        elif name.endswith(_ARCHIVE) and path.is_file():
            found += _in_archive(path)
        elif path.exists():
            found.append(LogSource(name=name, path_unless_stdin=path))
        else:
            raise SpecError(
                _("{name}: no such file or folder").format(name=name),
                next_step=_("name a log, a folder with logs, or a run"),
            )
    if len(found) > MAX_FILES:
        raise SpecError(
            _("{count} logs, more than {most_files}").format(count=len(found), most_files=MAX_FILES),
            next_step=_("name a folder further down"),
        )
    return list(dict.fromkeys(found))


def find_run_sources(run_dir: Path) -> list[LogSource]:
    """Return the logs of the stages of a run of rlbox, in their order.

    Raises
    ------
    SpecError
        No stage has begun.
    """
    found = [
        LogSource(name=str(path.relative_to(run_dir)), path_unless_stdin=path)
        for path in list_logs(run_dir, None, None)
    ]
    if not found:
        raise SpecError(
            _("run {run_dir} has no log").format(run_dir=run_dir.name), where=str(run_dir), next_step="rlbox runs"
        )
    return found


def _in_folder(directory: Path, before: str = "") -> list[LogSource]:
    found = []
    for root, directories, files in os.walk(directory):
        here = Path(root)
        depth = len(here.relative_to(directory).parts)
        directories[:] = sorted(name for name in directories if name not in _LEFT and depth < _DEEPEST)
        found += [
            LogSource(name=str(before / (here / name).relative_to(directory)), path_unless_stdin=here / name)
            for name in sorted(files)
            if _LOG.search(name) and not (here / name).is_symlink()
        ]
    if not found:
        raise SpecError(
            _("{folder}: no log in it").format(folder=directory),
            next_step=_("name the log file itself; any file name works"),
        )
    return found


def _in_archive(archive: Path) -> list[LogSource]:
    with _opened_archive(archive) as tar:
        names = [member.name for member in tar if member.isfile() and _LOG.search(Path(member.name).name)]
    if not names:
        raise SpecError(
            _("{archive}: no log in it").format(archive=archive), next_step=_("unpack it, and name the log")
        )
    return [
        LogSource(name=name, path_unless_stdin=archive, archive_member=name)
        for name in names
        if not _LEFT & set(Path(name).parts)
    ]


@contextlib.contextmanager
def _opened_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SpecError(
            _("{archive}: not an archive").format(archive=archive), next_step=_("name a log or a folder")
        ) from error


def read_blocks(source: LogSource) -> Iterator[bytes]:
    """Yield the bytes of a log in blocks, unpacked; what breaks off ends it as an end would.

    Raises
    ------
    NodeError
        It cannot be opened.
    """
    if source.path_unless_stdin is None:
        yield from _blocks(sys.stdin.buffer)
        return
    if source.archive_member:
        with _opened_archive(source.path_unless_stdin) as tar:
            file = tar.extractfile(source.archive_member)
            yield from _blocks(file) if file else ()
        return
    try:
        handle = open_regular_fd(source.path_unless_stdin, follow_links=True)
    except OSError as error:
        raise NodeError(f"{source.name}: {error.strerror or error}", where=str(source.path_unless_stdin)) from error
    with open(handle, "rb", buffering=0) as plain:
        if has_compressed_suffix(source.path_unless_stdin):
            yield from _unpacked(plain, source.path_unless_stdin.suffix)
            return
        yield from _blocks(plain)


def has_compressed_suffix(path: Path) -> bool:
    """Whether a log is compressed, so that no offset in it can be sought."""
    return path.suffix in _COMPRESSED_SUFFIXES


def _blocks(file: IO[bytes] | Any) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while block := file.read(BLOCK_BYTES):
            yield block


def _unpacked(file: IO[bytes], suffix: str) -> Iterator[bytes]:
    unpacked = gzip.GzipFile(fileobj=file) if suffix == ".gz" else zstd.ZstdFile(file)
    with contextlib.suppress(OSError, EOFError, zlib.error, zstd.ZstdError):
        yield from _blocks(unpacked)
