"""How much of a file lies in the page cache, and how much memory the page cache can have here.

cachestat(2) (Linux 6.5) answers at once. It knows nothing of a file that an overlay shows from a layer below, and older
kernels lack it: then mincore(2) is asked, over a mapping of the file. Neither is told of files that the caller may not
write and does not own, since a kernel says nothing true of those (Linux commit 134fca9063ad).
"""

from __future__ import annotations

import ctypes
import mmap
import os

from rlbox.machine.act.libc import LIBC
from rlbox.machine.act.memory import available_bytes, probe_memory

_CACHESTAT = 451  # its number on every architecture
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 30  # of a file that is mapped at once


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))


LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def resident_bytes(handle: int, offset: int, length: int) -> int | None:
    """Return how many bytes of an open file's range are in the page cache; None where the kernel does not tell.

    `offset` is a multiple of a page's size.
    """
    pages = _cachestat(handle, offset, length)
    if not pages:  # none, or not known: an overlay's own file has none even when all is there
        pages = _mincore(handle, offset, length)
    return None if pages is None else min(pages * _PAGE, length)


def _cachestat(handle: int, offset: int, length: int) -> int | None:
    asked, said = _Range(offset, length), _Stat()
    if LIBC.syscall(_CACHESTAT, handle, ctypes.byref(asked), ctypes.byref(said), 0):
        return None
    return int(said.cache)


def _mincore(handle: int, offset: int, length: int) -> int | None:
    if not _may_ask(handle):
        return None
    pages = 0
    for start in range(offset, offset + length, _PIECE):
        size = min(_PIECE, offset + length - start)
        found = _mincore_piece(handle, start, size)
        if found is None:
            return None
        pages += found
    return pages


def _mincore_piece(handle: int, offset: int, length: int) -> int | None:
    at = LIBC.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, handle, offset)
    if at == _FAILED:
        return None
    flags = (ctypes.c_ubyte * -(-length // _PAGE))()
    try:
        return None if LIBC.mincore(at, length, flags) else sum(byte & 1 for byte in bytes(flags))
    finally:
        LIBC.munmap(at, length)


def _may_ask(handle: int) -> bool:
    facts = os.fstat(handle)
    return os.geteuid() in (0, facts.st_uid) or os.access(f"/proc/self/fd/{handle}", os.W_OK)


def room_bytes() -> int:
    """Return how much the page cache can hold here, with what it holds already."""
    rooms = [available_bytes()]
    limit = probe_memory()
    if limit.limit_bytes is not None and limit.used_bytes is not None:
        rooms.append(limit.limit_bytes - limit.used_bytes + limit.cache_bytes)
    return max(min(rooms), 0)
