"""Read what is needed of an ELF file to tell whether it is whole and fits the libraries beside it.

Written for this and not taken from a library: a scan of a few hundred files with half a million symbols has one second,
and the libraries for it make an object of every symbol.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rlbox.i18n import _

_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNSYM, _STRTAB, _NOBITS, _GLOBAL, _PT_LOAD = 11, 3, 8, 1, 1
_MACHINES = {"x86_64": 62, "aarch64": 183}


class DamagedElfError(Exception):
    """The file is no whole ELF file for this machine; the text says why."""


@dataclass(frozen=True, kw_only=True)
class ElfSymbols:
    """A whole ELF file: the names that it takes from others and gives to them, of those that `wanted` picks."""

    undefined: frozenset[bytes]
    defined: frozenset[bytes]


def require_complete_elf(path: str) -> None:
    """Raise `DamagedElfError` when a file is cut short, is no ELF file, or is for another processor."""
    with open(path, "rb") as file:
        _sections(file.read(_HEADER.size), os.fstat(file.fileno()).st_size, file.fileno())


def read_matching_symbols(path: str, name_parts: tuple[bytes, ...]) -> ElfSymbols | None:
    """Return the dynamic symbols that hold one of `name_parts` in their names; None when the file has none of them.

    Undefined ones are the strong ones: a weak symbol may stay undefined.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        table = _sections(data[: _HEADER.size], len(data), file.fileno())
        for kind, offset, size, link in table:
            if kind != _DYNSYM or link >= len(table):
                continue
            __, at, length, __ = table[link]
            names = data[at : at + length]
            if not any(mark in names for mark in name_parts):
                return None
            return _pick(data[offset : offset + size], names, name_parts)
    return None


def _pick(symbols: bytes, names: bytes, marks: tuple[bytes, ...]) -> ElfSymbols:
    undefined: set[bytes] = set()
    defined: set[bytes] = set()
    for at, info, __, section, __, __ in _SYMBOL.iter_unpack(symbols[: len(symbols) // _SYMBOL.size * _SYMBOL.size]):
        if not at or (section == 0 and info >> 4 != _GLOBAL):
            continue
        name = names[at : names.find(b"\0", at)]
        if name.startswith(marks):
            (undefined if section == 0 else defined).add(name)
    return ElfSymbols(undefined=frozenset(undefined), defined=frozenset(defined))


def _sections(head: bytes, size: int, descriptor: int) -> list[tuple[int, int, int, int]]:
    """Return kind, offset, size and link of every section, after the checks of wholeness."""
    if not head.startswith(_MAGIC):
        raise DamagedElfError(_("is no ELF file") if size else _("is empty"))
    if len(head) < _HEADER.size:
        raise DamagedElfError(_("is cut short: {size} bytes").format(size=size))
    if head[4] != 2 or head[5] != 1:
        raise DamagedElfError(_("is not a 64-bit little-endian file"))
    fields = _HEADER.unpack(head)
    machine, segments_at, sections_at = fields[2], fields[5], fields[6]
    wanted = _MACHINES.get(os.uname().machine)
    if wanted and machine != wanted:
        raise DamagedElfError(
            _("is for another processor (ELF machine {machine}, this is {machine2})").format(
                machine=machine, machine2=os.uname().machine
            )
        )
    ends = [sections_at + fields[11] * fields[12]]
    for __, __, __, offset, length in _segments(descriptor, segments_at, fields[9], fields[10]):
        ends.append(offset + length)
    table = list(_table(descriptor, sections_at, fields[11], fields[12]))
    ends += [offset + length for kind, offset, length, __ in table if kind != _NOBITS]
    if max(ends) > size:
        raise DamagedElfError(
            _("is cut short: {size} bytes, its own table says {ends}").format(size=size, ends=max(ends))
        )
    return table


def _segments(descriptor: int, at: int, width: int, count: int) -> Iterator[tuple[int, int, int, int, int]]:
    for row in _rows(descriptor, at, width, count, _SEGMENT):
        kind, flags, offset, address, __, length = row[:6]
        if kind == _PT_LOAD:
            yield kind, flags, address, offset, length


def _table(descriptor: int, at: int, width: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    for row in _rows(descriptor, at, width, count, _SECTION):
        yield row[1], row[4], row[5], row[6]


def _rows(descriptor: int, at: int, width: int, count: int, shape: struct.Struct) -> Iterator[tuple[int, ...]]:
    if width != shape.size:
        return
    data = os.pread(descriptor, width * count, at)
    yield from shape.iter_unpack(data[: len(data) // width * width])
