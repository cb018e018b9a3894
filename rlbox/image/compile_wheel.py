"""For which GPUs a library has kernels, as told by the headers of the fat binaries in it."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from rlbox.errors import WorkFailed, get_docs_url
from rlbox.i18n import _

# Source: n-eiling/cricket cpu/cpu-elf2.c, fat_elf_header and fat_text_header; looked at in what nvcc 13.0 writes.
_MAGIC = struct.pack("<I", 0xBA55ED50)
_FAT = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_KERNELS = 2
"""Kind of an entry that holds machine code; 1 is PTX, which a driver would have to compile."""


def parse_gpu_archs(library: bytes) -> frozenset[str]:
    """Return the architectures (`sm_80`) that a library or an object file has machine code for.

    What is compiled for one model alone (`sm_90a`) is told as the plain one.
    """
    return frozenset(f"sm_{arch}" for arch in _archs(library))


def _archs(data: bytes) -> Iterator[int]:
    at = data.find(_MAGIC)
    while at >= 0 and at + _FAT.size <= len(data):
        __, __, header, size = _FAT.unpack_from(data, at)
        entry, end = at + header, min(at + header + size, len(data))
        while entry + _ENTRY.size <= end:
            kind, __, head, body, arch = _ENTRY.unpack_from(data, entry)
            if kind == _KERNELS:
                yield arch
            if head + body <= 0:
                break
            entry += head + body
        at = data.find(_MAGIC, at + 4)


_MOMENT = (1980, 1, 1, 0, 0, 0)
_LEVEL = 6


def write_reproducible_wheel(built_wheel: Path, output: Path) -> None:
    """Write a wheel anew: files sorted, its RECORD last, one time stamp, two modes."""
    with zipfile.ZipFile(built_wheel) as built, zipfile.ZipFile(output, "w") as plain:
        rows = sorted(built.infolist(), key=lambda row: (row.filename.endswith(".dist-info/RECORD"), row.filename))
        for row in rows:
            if row.is_dir():
                continue
            mode = 0o755 if (row.external_attr >> 16) & 0o111 else 0o644
            entry = zipfile.ZipInfo(row.filename, _MOMENT)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED
            plain.writestr(entry, built.read(row), compresslevel=_LEVEL)


def read_wheel_gpu_archs(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if name.endswith(".so") or ".so." in name]
        return frozenset(arch for name in names for arch in parse_gpu_archs(packed.read(name)))


def list_different_files(first_wheel: Path, second_wheel: Path) -> list[str]:
    with zipfile.ZipFile(first_wheel) as first, zipfile.ZipFile(second_wheel) as second:
        names = [set(wheel.namelist()) for wheel in (first, second)]
        return sorted(
            name
            for name in names[0] | names[1]
            if name not in names[0] & names[1] or first.read(name) != second.read(name)
        )


def require_gpu_archs(wheel: Path, package: str, sm_archs: tuple[str, ...]) -> None:
    """Refuse a wheel that has no kernels for one of the architectures `sm_archs`.

    Raises WorkFailed: it was compiled for other GPUs.
    """
    found = read_wheel_gpu_archs(wheel) if sm_archs else frozenset()
    missing = [arch for arch in sm_archs if arch.rstrip("af") not in found]
    if missing and not found:
        raise WorkFailed(
            _("the wheel of {name} has no GPU code, and {missing} was asked for").format(
                name=package, missing=", ".join(missing)
            ),
            where=wheel.name,
            next_step=_(
                "if it is C++ alone, leave out cuda and archs of {name} in [[stack.compile]] and put the "
                "compiler packages that its build needs into needs ({page}); else set the variable by "
                "which its build takes architectures in env"
            ).format(name=package, page=get_docs_url("compile")),
        )
    if missing:
        raise WorkFailed(
            _("{name} was compiled for {found}, and not for {missing}").format(
                name=package, found=", ".join(sorted(found)), missing=", ".join(missing)
            ),
            where=wheel.name,
            next_step=_(
                "set the variable by which its build takes architectures, in env of {name} in [[stack.compile]]"
            ).format(name=package),
        )
