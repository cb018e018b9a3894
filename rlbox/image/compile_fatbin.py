"""For which GPUs a library has kernels, as told by the headers of the fat binaries in it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Source: n-eiling/cricket cpu/cpu-elf2.c, fat_elf_header and fat_text_header; looked at in what nvcc 13.0 writes.
_MAGIC = struct.pack("<I", 0xBA55ED50)
_FAT = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_KERNELS = 2
"""Kind of an entry that holds machine code; 1 is PTX, which a driver would have to compile."""


def archs_in(data: bytes) -> frozenset[str]:
    """Return the architectures (`sm_80`) that a library or an object file has machine code for.

    What is compiled for one model alone (`sm_90a`) is told as the plain one.
    """
    return frozenset(f"sm_{arch}" for arch in _archs(data))


def _archs(data: bytes) -> Iterator[int]:
    at = data.find(_MAGIC)
    while at >= 0 and at + _FAT.size <= len(data):
        _, _, header, size = _FAT.unpack_from(data, at)
        entry, end = at + header, min(at + header + size, len(data))
        while entry + _ENTRY.size <= end:
            kind, _, head, body, arch = _ENTRY.unpack_from(data, entry)
            if kind == _KERNELS:
                yield arch
            if head + body <= 0:
                break
            entry += head + body
        at = data.find(_MAGIC, at + 4)
