"""Write the smallest ELF shared object that wants one symbol of c10 which no torch of today has. Argument: its path."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

# `c10::Error::Error(c10::SourceLocation, std::string)` with the string of the C++ ABI before GCC 5.
SYMBOL = b"_ZN3c105ErrorC2ENS_14SourceLocationESs"
NAMES = b"\0" + SYMBOL + b"\0"
SECTION_NAMES = b"\0.dynsym\0.dynstr\0.shstrtab\0"
HASH, STRTAB, SYMTAB, RELA, RELASZ, RELAENT, STRSZ, SYMENT = 4, 5, 6, 7, 8, 9, 10, 11


def main() -> None:
    """Lay the parts out one after the other: headers, symbols, names, hash table, one relocation, dynamic section."""
    symbols_at = 64 + 2 * 56
    names_at = symbols_at + 2 * 24
    hash_at = (names_at + len(NAMES) + 7) // 8 * 8
    relocation_at = (hash_at + 5 * 4 + 7) // 8 * 8
    slot_at = relocation_at + 24
    dynamic_at = slot_at + 8
    rows = [
        (HASH, hash_at), (STRTAB, names_at), (SYMTAB, symbols_at), (STRSZ, len(NAMES)), (SYMENT, 24),
        (RELA, relocation_at), (RELASZ, 24), (RELAENT, 24), (0, 0),
    ]  # fmt: skip
    dynamic = b"".join(struct.pack("<QQ", *row) for row in rows)
    section_names_at = dynamic_at + len(dynamic)
    sections_at = (section_names_at + len(SECTION_NAMES) + 7) // 8 * 8
    size = sections_at + 4 * 64
    parts = {
        0: struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 2, 64, 4, 3),
        64: struct.pack("<IIQQQQQQ", 1, 7, 0, 0, 0, size, size, 4096),
        120: struct.pack("<IIQQQQQQ", 2, 6, *[dynamic_at] * 3, *[len(dynamic)] * 2, 8),
        symbols_at: bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 0, 0, 0),
        names_at: NAMES,
        hash_at: struct.pack("<IIIII", 1, 2, 1, 0, 0),
        relocation_at: struct.pack("<QQq", slot_at, (1 << 32) | 6, 0),
        dynamic_at: dynamic,
        section_names_at: SECTION_NAMES,
        sections_at + 64: struct.pack("<IIQQQQIIQQ", 1, 11, 2, symbols_at, symbols_at, 48, 2, 1, 8, 24),
        sections_at + 128: struct.pack("<IIQQQQIIQQ", 9, 3, 2, names_at, names_at, len(NAMES), 0, 0, 1, 0),
        sections_at + 192: struct.pack("<IIQQQQIIQQ", 17, 3, 0, 0, section_names_at, len(SECTION_NAMES), 0, 0, 1, 0),
    }
    data = bytearray(size)
    for at, part in parts.items():
        data[at : at + len(part)] = part
    Path(sys.argv[1]).write_bytes(data)


if __name__ == "__main__":
    main()
