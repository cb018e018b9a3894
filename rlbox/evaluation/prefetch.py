"""Bring files into the page cache with large reads of four threads, and look how much of them is there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from rlbox.errors import SpecError, WorkFailed
from rlbox.evaluation.prefetch_plan import FileRange, Warmed, WarmFile, plan_pieces, resident_of, with_residence
from rlbox.i18n import _
from rlbox.system.page_cache import count_cached_bytes

THREADS = 4  # measured: one thread reads at half the speed, sixteen no faster
_BLOCK = 1 << 20
_PASSES = 3


def find_files(paths: Sequence[Path]) -> tuple[WarmFile, ...]:
    """Return the files at, or below, `paths`, each once; links are followed, as a Hugging Face cache is made of them.

    Raises
    ------
    SpecError
        A path is missing, or there is no file below it.
    """
    found: dict[tuple[int, int], WarmFile] = {}
    for path in paths:
        names = _below(path)
        if not names:
            raise SpecError(
                _("there is no file to warm"), where=str(path), next_step=_("name a file, or a model's folder")
            )
        for name in names:
            facts = os.stat(name)
            found.setdefault((facts.st_dev, facts.st_ino), WarmFile(path=str(name), size=facts.st_size))
    return tuple(found.values())


def _below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    rows = [Path(folder, name) for folder, __, names in os.walk(path) for name in sorted(names)]
    return [row for row in rows if row.is_file()]


def look_at(files: Sequence[WarmFile]) -> Warmed:
    """Return what of the files is resident."""
    began = time.monotonic()
    pieces = _look_at(plan_pieces(files))
    seconds = time.monotonic() - began
    return Warmed(files=with_residence(files, pieces), pieces=pieces, before=resident_of(pieces), seconds=seconds)


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


def warm_files(found: Warmed, on_bytes: Callable[[int], None]) -> Warmed:
    """Read what `look_at` found not to be resident, and return what is afterwards.

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
    known, read = {(piece.path, piece.offset): piece for piece in found.pieces}, 0
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
    files = with_residence(found.files, pieces)
    return Warmed(files=files, pieces=pieces, before=found.before, read=read, seconds=time.monotonic() - began)


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
