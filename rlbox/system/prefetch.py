"""Read files into the page cache by four threads, and measure how much of them is there (`rlbox warm`)."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import counted, decimal_size_text, duration_text
from rlbox.errors import NodeError, SpecError, WorkFailed
from rlbox.i18n import _
from rlbox.system.libc import LIBC

_THREADS = 4  # measured: one thread reads at half the speed, sixteen no faster
_CHUNK_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_WARM_SHARE = 0.999


@dataclass(frozen=True, kw_only=True)
class CachedFile:
    """`resident` bytes of a file are in the page cache; None where the kernel does not tell."""

    path: str
    size: int
    resident: int | None


@dataclass(frozen=True, kw_only=True)
class PageCacheReport:
    """Files as they are now; `resident_before` and `bytes_read` are bytes before, and read since."""

    files: tuple[CachedFile, ...]
    resident_before: int | None
    bytes_read: int = 0
    seconds: float = 0.0

    @property
    def total_file_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def files_to_read(self) -> tuple[CachedFile, ...]:
        return tuple(file for file in self.files if file.resident != file.size)

    @property
    def bytes_left_to_read(self) -> int:
        return sum(file.size for file in self.files_to_read)

    @property
    def resident_bytes(self) -> int | None:
        """Bytes in the page cache; None where the kernel does not tell of one of the files."""
        return _sum_resident(self.files)

    @property
    def is_warm(self) -> bool | None:
        """Whether practically all is in memory; None where the kernel does not tell."""
        return None if self.resident_bytes is None else self.resident_bytes >= _WARM_SHARE * self.total_file_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "size": self.total_file_bytes,
            "resident_before": self.resident_before,
            "resident": self.resident_bytes,
            "read": self.bytes_read,
            "warm": self.is_warm,
            "seconds": round(self.seconds, 6),
            "files": [vars(file) for file in self.files],
        }


def measure_page_cache(paths: Sequence[Path]) -> PageCacheReport:
    """Measure the files at, or below, `paths`, each once; links are followed: a Hugging Face cache is made of them.

    Raises
    ------
    SpecError
        A path is missing, or there is no file below it.
    """
    began = time.monotonic()
    files: dict[tuple[int, int], str] = {}
    for path in paths:
        names = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
        if not names:
            raise SpecError(
                _("there is no file to warm"), where=str(path), next_step=_("name a file, or a model's folder")
            )
        for name in names:
            status = name.stat()
            files.setdefault((status.st_dev, status.st_ino), str(name))
    measured = _measure_files(files.values())
    return PageCacheReport(files=measured, resident_before=_sum_resident(measured), seconds=time.monotonic() - began)


def require_free_memory(report: PageCacheReport, available: int) -> None:
    """Refuse files that `available` bytes of memory cannot hold: reading their end would evict their beginning."""
    if report.total_file_bytes <= available:
        return
    first, count = report.files[0].path, len(report.files)
    raise NodeError(
        _("{size} do not stay in memory: the page cache can have {room} here").format(
            size=decimal_size_text(report.total_file_bytes), room=decimal_size_text(available)
        ),
        where=first if count == 1 else f"{count} files from {first} on",
        next_step=_("warm fewer files, end what uses the memory, or raise the container's limit (run.memory_gib)"),
    )


def read_into_page_cache(report: PageCacheReport, on_bytes: Callable[[int], None]) -> PageCacheReport:
    """Read the files that are not resident, and return what is resident then; `WorkFailed` for one that is unreadable.

    `on_bytes` is called with the size of every block, from any thread.
    """
    began = time.monotonic()
    chunks = [(file.path, offset) for file in report.files_to_read for offset in range(0, file.size, _CHUNK_BYTES)]
    with ThreadPoolExecutor(_THREADS) as workers:
        read = sum(workers.map(lambda chunk: _read_chunk(chunk[0], chunk[1], on_bytes), chunks))
    return PageCacheReport(
        files=_measure_files(file.path for file in report.files),
        resident_before=report.resident_before,
        bytes_read=read,
        seconds=time.monotonic() - began,
    )


def format_report(report: PageCacheReport) -> str:
    files = f"{counted(len(report.files), 'file', 'files')}, {decimal_size_text(report.total_file_bytes)}"
    if report.resident_bytes is None:
        state = "read, but the kernel does not tell how much of it is in memory"
    else:  # never rounded up to all
        percent = 1000 * report.resident_bytes // report.total_file_bytes / 10 if report.total_file_bytes else 100
        state = f"{percent:g} % in memory"
    if not report.bytes_read:
        return f"{files}: {state}, nothing was read"
    speed = decimal_size_text(report.bytes_read / max(report.seconds, 1e-6))
    return (
        f"{files}: {state}, {decimal_size_text(report.bytes_read)} read in {duration_text(report.seconds)} ({speed}/s)"
    )


def _sum_resident(files: Sequence[CachedFile]) -> int | None:
    sizes = [file.resident for file in files if file.resident is not None]
    return sum(sizes) if len(sizes) == len(files) else None


def _measure_files(paths: Iterable[str]) -> tuple[CachedFile, ...]:
    with ThreadPoolExecutor(_THREADS) as workers:
        return tuple(workers.map(_measure_file, paths))


def _measure_file(path: str) -> CachedFile:
    with _open(path) as handle:
        size = os.fstat(handle).st_size
        return CachedFile(path=path, size=size, resident=_count_cached_bytes(handle, size) if size else 0)


def _read_chunk(path: str, offset: int, on_bytes: Callable[[int], None]) -> int:
    done, buffer = 0, memoryview(bytearray(_BLOCK_BYTES))
    with _open(path) as handle:
        while done < _CHUNK_BYTES and (count := os.preadv(handle, [buffer], offset + done)):
            done += count
            on_bytes(count)
    return done


@contextlib.contextmanager
def _open(path: str) -> Iterator[int]:
    try:
        with open(path, "rb", buffering=0) as file:
            yield file.fileno()
    except OSError as error:
        raise WorkFailed(
            _("the file cannot be read: {strerror}").format(strerror=error.strerror), where=path
        ) from error


_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
LIBC.mincore.argtypes = (_ADDRESS, _SIZE, _ADDRESS)
LIBC.mmap.argtypes, LIBC.mmap.restype = (_ADDRESS, _SIZE, _INT, _INT, _INT, ctypes.c_int64), _ADDRESS
LIBC.munmap.argtypes = (_ADDRESS, _SIZE)
_MAP_FAILED = ctypes.c_void_p(-1).value


def _count_cached_bytes(handle: int, size: int) -> int | None:
    """Return how many bytes of an open file are in the page cache; None where the kernel does not tell."""
    may_ask = os.geteuid() in (0, os.fstat(handle).st_uid) or os.access(f"/proc/self/fd/{handle}", os.W_OK)
    at = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0) if may_ask else _MAP_FAILED
    if at == _MAP_FAILED:
        return None
    flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    try:
        failed = LIBC.mincore(at, size, flags)
        return None if failed else min(sum(byte & 1 for byte in bytes(flags)) * mmap.PAGESIZE, size)
    finally:
        LIBC.munmap(at, size)
