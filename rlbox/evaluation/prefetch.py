"""Read files into the page cache by four threads, and report how much of them is there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlbox.amounts import counted, duration_text, size_text
from rlbox.errors import NodeError, SpecError, WorkFailed
from rlbox.i18n import _
from rlbox.system.page_cache import count_cached_bytes

CHUNK_BYTES = 64 << 20
"""Bytes that one thread reads in a row."""
WHOLE = 0.999
"""Share of the bytes that must be resident (performance goal 28)."""


@dataclass(frozen=True, kw_only=True)
class CachedFile:
    """A file to warm; `resident` bytes of it are in the page cache, None where the kernel does not tell."""

    path: str
    size: int
    resident: int | None = None


@dataclass(frozen=True, kw_only=True)
class FileRange:
    """A range of a file, and how much of it is in the page cache; None where the kernel does not tell."""

    path: str
    offset: int
    length: int
    resident: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it need not be read."""
        return self.resident == self.length


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """What is in the page cache, before and after; `read` counts the bytes that were read for it.

    `seconds` is what reading took, or looking where nothing was read.
    """

    files: tuple[CachedFile, ...]
    pieces: tuple[FileRange, ...] = ()
    before: int | None = None
    read: int = 0
    seconds: float = 0.0

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def resident(self) -> int | None:
        """Bytes in the page cache; None where the kernel does not tell of one of the files."""
        return sum_resident(self.files)

    @property
    def share(self) -> float | None:
        """Share of the bytes that are in the page cache; 1 where there are none."""
        return None if self.resident is None else self.resident / self.size if self.size else 1.0

    @property
    def warm(self) -> bool | None:
        """Whether practically all is there; None where the kernel does not tell."""
        return None if self.share is None else self.share >= WHOLE

    def as_json(self) -> dict[str, Any]:
        totals = {"size": self.size, "resident_before": self.before, "resident": self.resident, "read": self.read}
        return {
            **totals,
            "warm": self.warm,
            "seconds": round(self.seconds, 6),
            "files": [vars(file) for file in self.files],
        }


def sum_resident(rows: Sequence[CachedFile | FileRange]) -> int | None:
    """Return the bytes of files, or pieces, that are in the page cache; None where one of them is not known."""
    known = [row.resident for row in rows if row.resident is not None]
    return sum(known) if len(known) == len(rows) else None


def split_into_ranges(files: Sequence[CachedFile]) -> tuple[FileRange, ...]:
    """Return the pieces that the files are looked at and read in, in the order of the files."""
    return tuple(
        FileRange(path=file.path, offset=offset, length=min(CHUNK_BYTES, file.size - offset))
        for file in files
        for offset in range(0, file.size, CHUNK_BYTES)
    )


def add_resident_bytes(files: Sequence[CachedFile], pieces: Sequence[FileRange]) -> tuple[CachedFile, ...]:
    """Return the files with what the pieces say of them."""
    by_path: dict[str, list[FileRange]] = {}
    for piece in pieces:
        by_path.setdefault(piece.path, []).append(piece)
    return tuple(replace(file, resident=sum_resident(by_path.get(file.path, ()))) for file in files)


def require_free_memory(files: Sequence[CachedFile], room: int) -> None:
    """Refuse to read what the memory cannot keep.

    Parameters
    ----------
    room
        Bytes that the page cache can have, with what it holds already.

    Raises
    ------
    NodeError
        The files are larger: reading their end would drive out their beginning.
    """
    size = sum(file.size for file in files)
    if size <= room:
        return
    raise NodeError(
        _("{size} do not stay in memory: the page cache can have {room} here").format(
            size=size_text(size), room=size_text(room)
        ),
        where=files[0].path if len(files) == 1 else f"{len(files)} files from {files[0].path} on",
        next_step=_("warm fewer files, end what uses the memory, or raise the container's limit (run.memory_gib)"),
    )


def format_cache_report(warmed: CacheReport) -> str:
    """Return one line: how much is there, how fast it came."""
    files = f"{counted(len(warmed.files), 'file', 'files')}, {size_text(warmed.size)}"
    if warmed.share is None:
        there = "read, but the kernel does not tell how much of it is in memory"
    else:
        there = f"{int(warmed.share * 1000) / 10:g} % in memory"
    if not warmed.read:
        return f"{files}: {there}, nothing was read"
    speed = size_text(warmed.read / max(warmed.seconds, 1e-6))
    return f"{files}: {there}, {size_text(warmed.read)} read in {duration_text(warmed.seconds)} ({speed}/s)"


THREADS = 4  # measured: one thread reads at half the speed, sixteen no faster
_BLOCK = 1 << 20
_PASSES = 3


def list_files(paths: Sequence[Path]) -> tuple[CachedFile, ...]:
    """Return the files at, or below, `paths`, each once; links are followed, as a Hugging Face cache is made of them.

    Raises
    ------
    SpecError
        A path is missing, or there is no file below it.
    """
    found: dict[tuple[int, int], CachedFile] = {}
    for path in paths:
        names = _below(path)
        if not names:
            raise SpecError(
                _("there is no file to warm"), where=str(path), next_step=_("name a file, or a model's folder")
            )
        for name in names:
            facts = os.stat(name)
            found.setdefault((facts.st_dev, facts.st_ino), CachedFile(path=str(name), size=facts.st_size))
    return tuple(found.values())


def _below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    rows = [Path(folder, name) for folder, __, names in os.walk(path) for name in sorted(names)]
    return [row for row in rows if row.is_file()]


def measure_cache(files: Sequence[CachedFile]) -> CacheReport:
    began = time.monotonic()
    pieces = _look_at(split_into_ranges(files))
    seconds = time.monotonic() - began
    return CacheReport(
        files=add_resident_bytes(files, pieces), pieces=pieces, before=sum_resident(pieces), seconds=seconds
    )


def _look_at(pieces: Sequence[FileRange]) -> tuple[FileRange, ...]:
    """Return the pieces with what of them is resident; in a few threads, since the kernel counts pages."""
    with ThreadPoolExecutor(THREADS) as workers:
        return tuple(workers.map(_look, pieces))


def _look(piece: FileRange) -> FileRange:
    handle = _open(piece.path)
    try:
        return replace(piece, resident=count_cached_bytes(handle, piece.offset, piece.length))
    finally:
        os.close(handle)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise WorkFailed(
            _("the file cannot be read: {strerror}").format(strerror=error.strerror), where=path
        ) from error


def read_into_cache(report: CacheReport, on_bytes: Callable[[int], None]) -> CacheReport:
    """Read what `measure_cache` found not to be resident, and return what is afterwards.

    What was driven out again while the rest was read is read once more, and a third time at most.

    Parameters
    ----------
    on_bytes
        Told of every block that was read, from any thread.

    Raises
    ------
    WorkFailed
        A file cannot be read.
    """
    began = time.monotonic()
    known, read = {(piece.path, piece.offset): piece for piece in report.pieces}, 0
    for __ in range(_PASSES):
        missing = [piece for piece in known.values() if not piece.whole]
        if not missing:
            break
        read += _read_all(missing, on_bytes)
        after = _look_at(missing)
        known |= {(piece.path, piece.offset): piece for piece in after}
        if any(piece.resident is None for piece in after):
            break  # it can be read, but not be known
    pieces = tuple(known.values())
    files = add_resident_bytes(report.files, pieces)
    return CacheReport(files=files, pieces=pieces, before=report.before, read=read, seconds=time.monotonic() - began)


def _read_all(pieces: Sequence[FileRange], on_bytes: Callable[[int], None]) -> int:
    stop = threading.Event()
    with ThreadPoolExecutor(THREADS) as workers:
        try:
            return sum(workers.map(lambda piece: _read(piece, on_bytes, stop), pieces))
        finally:
            stop.set()  # after an error, or an interrupt, the pieces that wait are not begun


def _read(piece: FileRange, on_bytes: Callable[[int], None], stop: threading.Event) -> int:
    """Read a piece to its end, or to the file's, which may have become shorter."""
    handle, done = _open(piece.path), 0
    buffer = memoryview(bytearray(_BLOCK))
    try:
        while done < piece.length and not stop.is_set():
            count = os.preadv(handle, [buffer[: piece.length - done]], piece.offset + done)
            if count == 0:
                break
            done += count
            on_bytes(count)
    except OSError as error:
        raise WorkFailed(
            _("the file cannot be read: {strerror}").format(strerror=error.strerror), where=piece.path
        ) from error
    finally:
        os.close(handle)
    return done
