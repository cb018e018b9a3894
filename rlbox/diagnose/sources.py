"""The logs that a path means: a file, a folder of them, a run, standard input; and their bytes."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.logs.lines import strip_ansi_escapes
from rlbox.logs.run_logs import list_logs_or_empty
from rlbox.system.compression import zstd
from rlbox.system.safe_files import open_regular_fd

BLOCK_BYTES = 256 * 1024
"""Bytes of one read: what fits a core's cache is scanned faster, by a sixth than 1 MiB, nearly twice than 4 MiB."""
_MAGIC = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2",
    b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"7z\xbc\xaf": "7z", b"Rar!": "rar",
}  # fmt: skip
_OPENERS: dict[str, Callable[[Any], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "zstd": zstd.ZstdFile,
    "xz": lzma.LZMAFile,
    "bzip2": bz2.BZ2File,
}
_SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".xz": "xz", ".bz2": "bzip2", ".zip": "zip", ".7z": "7z"}
_LONGEST_MAGIC = max(map(len, _MAGIC))
_LOST_BLOCK = bytes(512)
"""What a file holds where the disk never got its data."""
_MOST_TEXT_PER_ZERO = 500
"""Bytes of text for each zero byte: compressed or compiled data has one in 256, a terminal's log a stray one."""
_LOG = re.compile(
    r"(?i)\.(?:log|out|err|stderr|stdout|trace)(?:\.\d+)?(?:\.(?:gz|zst|zstd|xz|bz2))?$|^(?:nohup|stdout|stderr|output"
    r"|console|messages|dmesg|syslog|log)[\w.-]*$|(?:log|logs|stderr|stdout|output|console|err|rank_?\d+"
    r"|slurm-\d+)[\w.-]*\.txt$"
)
_LEFT = {"evidence", "__pycache__", ".git", "node_modules", "site-packages", ".venv"}


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """One log and its shown name; without a path it is standard input."""

    name: str
    path_unless_stdin: Path | None = None


def find_log_sources(paths: list[str]) -> list[LogSource]:
    """Return the logs that the words of a command line mean, in order, each once.

    Raises SpecError: There is nothing of that name, or no log in a folder.
    """
    found: list[LogSource] = []
    for name in paths:
        if name == "-":
            found.append(LogSource(name="-"))
            continue
        path = Path(name)
        if path.is_dir():
            found += _in_folder(path, name if len(paths) > 1 else "")
        elif path.exists():
            found.append(LogSource(name=name, path_unless_stdin=path))
        else:
            what = _("{name}: broken symbolic link") if path.is_symlink() else _("{name}: no such file or folder")
            raise SpecError(what.format(name=name), next_step=_("name a log, a folder with logs, or a run"))
    return list(dict.fromkeys(found))


def require_run_log_sources(run_dir: Path) -> list[LogSource]:
    """Return the logs of the stages of a run of rlbox, in their order.

    Raises SpecError: No stage has begun.
    """
    paths = list_logs_or_empty(run_dir, None, None)
    if not paths:
        what = _("run {run_dir} has no log").format(run_dir=run_dir.name)
        raise SpecError(what, where=str(run_dir), next_step="rlbox runs")
    return [LogSource(name=str(path.relative_to(run_dir)), path_unless_stdin=path) for path in paths]


def _in_folder(directory: Path, before: str = "") -> list[LogSource]:
    found: list[Path] = []

    def add_unreadable_folder(error: OSError) -> None:
        found.append(Path(error.filename))

    for root, directories, files in os.walk(directory, onerror=add_unreadable_folder):
        directories[:] = sorted(name for name in directories if name not in _LEFT)
        paths = (Path(root, name) for name in sorted(files) if _LOG.search(name))
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
    if not found:
        what = _("{folder}: no log in it").format(folder=directory)
        raise SpecError(what, next_step=_("name the log file itself; any file name works"))
    return [LogSource(name=str(before / path.relative_to(directory)), path_unless_stdin=path) for path in found]


class DamagedLogError(Exception):
    """What of a log could be read is not all of it, or is no log; the message says why."""


class EmptyLogError(DamagedLogError):
    """A log without text, as a stderr often is; of a job's only log it says that nothing is known."""


def read_decompressed_blocks(source: LogSource) -> Iterator[bytes]:
    """Yield the bytes of a log in blocks, unpacked.

    Raises DamagedLogError: behind the last block that could be read.
    """
    if source.path_unless_stdin is None:
        yield from _read_text(io.BufferedReader(sys.stdin.buffer), "")
        return
    try:
        handle = open_regular_fd(source.path_unless_stdin, follow_links=True)
    except OSError as error:
        raise DamagedLogError(_("it cannot be read: {error}").format(error=error.strerror or error)) from error
    with open(handle, "rb") as file:
        yield from _read_text(file, source.path_unless_stdin.suffix)


def is_uncompressed_file(path: Path) -> bool:
    """Whether the lines of a log stand in the file as they are, so that an offset in it can be sought."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _find_format(file.read(_LONGEST_MAGIC)) == ""
    return False


def _find_format(head: bytes) -> str:
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def _read_text(file: Any, suffix: str) -> Iterator[bytes]:
    packed = _find_format(file.peek(_LONGEST_MAGIC))
    if packed and packed not in _OPENERS:
        raise DamagedLogError(_("it is a {format} archive: unpack it, and name the log").format(format=packed))
    blocks = _blocks(_OPENERS[packed](file) if packed else file, packed)
    has_text, size, zeros, has_lost_block = False, 0, 0, False
    for block in blocks:
        has_text = has_text or bool(strip_ansi_escapes(block.decode("latin-1")).strip(" \t\r\n"))
        size, zeros = size + len(block), zeros + block.count(0)
        has_lost_block = has_lost_block or _LOST_BLOCK in block
        yield block
    if not has_text:
        raise EmptyLogError(_("it is empty"))
    if has_lost_block or zeros * _MOST_TEXT_PER_ZERO > size:
        raise DamagedLogError(_("{count} bytes are zero: binary data, or blocks that were lost").format(count=zeros))
    if (named := _SUFFIXES.get(suffix, packed)) != packed:
        what = _("its name ends in {suffix}, but it holds no {format} data")
        raise DamagedLogError(what.format(suffix=suffix, format=named))


def _blocks(file: Any, packed: str) -> Iterator[bytes]:
    try:
        while block := file.read(BLOCK_BYTES):
            yield block
    except EOFError as error:
        what = _("the {format} data ends early; what comes behind is not known")
        raise DamagedLogError(what.format(format=packed)) from error
    except (OSError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        what = _("the {format} data is damaged: {error}") if packed else _("it cannot be read to its end: {error}")
        raise DamagedLogError(what.format(format=packed, error=error)) from error
