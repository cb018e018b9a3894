"""How much of a file lies in the page cache, by mincore(2) over a mapping of it.

cachestat(2) would need no mapping, but is of Linux 6.5, and knows nothing of a file that an overlay shows from a layer
below. Of a file that the caller neither owns nor may write a kernel says nothing true (Linux commit 134fca9063ad).
"""

from __future__ import annotations

import ctypes
import mmap
import os

from rlbox.system.libc import LIBC

_PAGE = mmap.PAGESIZE
_PIECE = 1 << 30  # of a file that is mapped at once


LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def count_cached_bytes(handle: int, offset: int, length: int) -> int | None:
    """Return how many bytes of an open file's range are in the page cache; None where the kernel does not tell.

    `offset` is a multiple of the page size.
    """
    if not _may_ask(handle):
        return None
    pages = 0
    for start in range(offset, offset + length, _PIECE):
        count = _count_pages(handle, start, min(_PIECE, offset + length - start))
        if count is None:
            return None
        pages += count
    return min(pages * _PAGE, length)


def _count_pages(handle: int, offset: int, length: int) -> int | None:
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
