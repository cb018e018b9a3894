"""Every file of the stack: RECORD says which there must be, ELF tables which are complete and fit torch."""

from __future__ import annotations

import csv
import hashlib
import mmap
import os
import struct
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding, listed
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.values import LOCK_IN_IMAGE, VENV

STACK_PROGRAM_FINDINGS = ("torch-*", "ray-*", "extension-*", "jit-*", "gpu-*")
# Checks of fixes that look at the packages themselves.
_LOOKS = ("numpy2-abi", "cuda-*", "flashinfer-*", "hf-old-switches", "libnuma-missing", "vllm-*", "path-in-every-shell")
_PINS = 4  # how many packages a remedy puts back


@dataclass(frozen=True, kw_only=True)
class FileDamage:
    """A file that is not what it was; `description` says how, with numbers."""

    package: str
    path: str
    kind: Literal["missing", "short", "changed", "broken"]
    description: str


@dataclass(frozen=True, kw_only=True)
class AbiMismatch:
    path: str
    count: int
    example: str


@dataclass(frozen=True, kw_only=True)
class PackageFacts:
    """The stack as it lies on the disk; `installed` maps canonical names to the versions that are there."""

    site_packages: str
    missing_reason: str = ""
    installed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    damages: tuple[FileDamage, ...] = ()
    abi_mismatches: tuple[AbiMismatch, ...] = ()
    torch_extensions: tuple[str, ...] = ()
    file_count: int = 0


def _there(facts: PackageFacts, requirements: Requirements) -> Iterator[Finding]:
    if facts.missing_reason:
        yield Finding(
            id="stack-missing",
            title=_("the stack's environment is not there"),
            seen=facts.missing_reason,
            where=facts.site_packages,
            remedy=_rebuild(requirements),
            breaks=("*",),
        )


def _rebuild(requirements: Requirements) -> str:
    return _("start a new container; if it is in the image: rlbox build --rebuild {target}").format(
        target=requirements.target or "TARGET"
    )


def _differing(facts: PackageFacts, requirements: Requirements) -> Iterator[tuple[str, str, str]]:
    """Yield name, locked version and what is there of every package that is not as locked."""
    for name, version in sorted(requirements.packages.items()):
        there = facts.installed.get(name, ())
        if there != (version,):
            yield name, version, " and ".join(there)


def _as_locked(facts: PackageFacts, requirements: Requirements) -> Iterator[Finding]:
    rows = list(_differing(facts, requirements))
    if not rows:
        return
    gone = [name for name, __, there in rows if not there]
    texts = [
        _("{name} {there} (locked: {version})").format(name=name, there=there or _("is gone"), version=version)
        for name, version, there in rows
    ]
    pins = " ".join(f"{name}=={version}" for name, version, __ in rows[:_PINS])
    yield Finding(
        id="package-missing" if len(gone) == len(rows) else "package-overwritten",
        title=_("packages of the stack are not those of the lock"),
        seen=listed(texts),
        where=facts.site_packages,
        remedy=_("start a new container, or put back: uv pip install --no-deps {pins}").format(pins=pins),
        breaks=(*STACK_PROGRAM_FINDINGS, *_LOOKS, "file-*"),
        covers=("numpy2-abi", "python-constraints"),
    )


def _damaged(facts: PackageFacts, requirements: Requirements) -> Iterator[Finding]:
    packages = dict.fromkeys(damage.package for damage in facts.damages)
    for package in packages:
        rows = [damage for damage in facts.damages if damage.package == package]
        compiled = [row for row in rows if row.kind in ("short", "broken")]
        kind = (compiled or rows)[0].kind
        yield Finding(
            id={"missing": "file-missing", "changed": "file-changed"}.get(kind, "file-truncated"),
            title=_("files of {package} are damaged").format(package=package)
            if package
            else _("a compiled extension is damaged"),
            seen=listed([f"{row.path} {row.description}" for row in (compiled or rows)]),
            where=rows[0].path,
            remedy=_rebuild(requirements),
            breaks=(*STACK_PROGRAM_FINDINGS, *_LOOKS),
        )


def _gaps(facts: PackageFacts, requirements: Requirements) -> Iterator[Finding]:
    version = requirements.packages.get("torch", "") or "".join(facts.installed.get("torch", ()))
    for gap in facts.abi_mismatches:
        yield Finding(
            id="torch-abi",
            title=_("an extension was built for another torch"),
            seen=_("{path} wants {count} symbols that torch {version} lacks: {example}").format(
                path=gap.path.rpartition("/")[2], count=gap.count, version=version, example=gap.example
            ),
            where=gap.path,
            remedy=_(
                "install the build of it that is made for torch {version} and its C++ ABI, lock and build again"
            ).format(version=version),
            breaks=("extension-*",),
            covers=("torch-ext-abi-mismatch",),
        )


check_packages = CheckGroup(prerequisite=_there, checks=(_as_locked, _damaged, _gaps))
"""What is wrong with the stack's files."""


# Files that the build writes with the image's own time stamp.
_STAMPED = ("/opt/rlbox/libexec/entrypoint.sh", LOCK_IN_IMAGE)
# Names of torch's C++ libraries; source: the mangling of the Itanium C++ ABI, `_ZN` and the length of each name.
_TORCH = tuple(f"_Z{kind}{name}".encode() for name in ("3c10", "2at", "5torch", "6caffe2") for kind in ("N", "NK"))
_HASHED_BYTES = 64 << 20  # a changed file of more is called changed by its time stamp alone


def get_site_packages_path(version: str, venv: str = VENV) -> str:
    return f"{venv}/lib/python{version}/site-packages"


def probe_packages(site_packages: str) -> PackageFacts:
    """Return the state of the packages in `site_packages`; reads sizes and time stamps of all files, bytes of few."""
    if not os.path.isdir(site_packages):
        return PackageFacts(
            site_packages=site_packages, missing_reason=_("{site} is missing").format(site=site_packages)
        )
    stamped = (*_STAMPED, os.path.join(site_packages, "../../../pyvenv.cfg"))
    stamps = {int(os.stat(path).st_mtime) for path in stamped if os.path.exists(path)}
    installed: dict[str, list[str]] = {}
    damages: list[FileDamage] = []
    owners: dict[str, str] = {}
    files = 0
    for folder in sorted(name for name in os.listdir(site_packages) if name.endswith(".dist-info")):
        written, __, version = folder.removesuffix(".dist-info").rpartition("-")
        name = canonicalize_name(written)
        installed.setdefault(name, []).append(version)
        for path, digest, size in _record(site_packages, folder):
            files += 1
            owners[path] = name
            damages += _compare(name, path, digest, size, stamps)
    known = {damage.path for damage in damages}
    compiled = sorted(_compiled(site_packages))
    broken = [damage for path in compiled if path not in known for damage in _broken(path, owners.get(path, ""))]
    whole = [path for path in compiled if path not in known and path not in {damage.path for damage in broken}]
    gaps, linked = _fit_torch(site_packages, whole)
    return PackageFacts(
        site_packages=site_packages,
        installed={name: tuple(sorted(versions)) for name, versions in installed.items()},
        damages=(*damages, *broken),
        abi_mismatches=gaps,
        torch_extensions=linked,
        file_count=files,
    )


def _record(site: str, folder: str) -> Iterator[tuple[str, str, int]]:
    """Yield path, digest and size of every file of a distribution that its RECORD gives a size of."""
    try:
        with open(f"{site}/{folder}/RECORD", newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                if len(row) == 3 and (size := whole_number(row[2])) is not None:
                    path = f"{site}/{row[0]}"
                    yield os.path.normpath(path) if "../" in row[0] else path, row[1], size
    except OSError:
        return


def _compare(package: str, path: str, digest: str, size: int, stamps: set[int]) -> Iterator[FileDamage]:
    try:
        facts = os.stat(path)
    except OSError:
        yield FileDamage(package=package, path=path, kind="missing", description=_("is missing"))
        return
    if facts.st_size == size and int(facts.st_mtime) in stamps:
        return
    if _is_library(path):
        if facts.st_size != size:
            what = _("has {st_size} bytes of {size}").format(st_size=facts.st_size, size=size)
            yield FileDamage(
                package=package, path=path, kind="short" if facts.st_size < size else "changed", description=what
            )
            return
    elif int(facts.st_mtime) in stamps:  # changed by the build: a patch
        return
    if facts.st_size > _HASHED_BYTES or not digest.startswith("sha256="):
        return
    with open(path, "rb") as file:
        own = urlsafe_b64encode(hashlib.sha256(file.read()).digest()).rstrip(b"=").decode()
    if own != digest.removeprefix("sha256="):
        yield FileDamage(
            package=package, path=path, kind="changed", description=_("was changed after the image was built")
        )


def _is_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name


def _compiled(site: str) -> Iterator[str]:
    folders = [site]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif _is_library(entry.name):
                    yield entry.path


def _broken(path: str, package: str) -> Iterator[FileDamage]:
    try:
        require_complete_elf(path)
    except DamagedElfError as error:
        if _is_text(path):  # a linker's script, which is no library
            return
        yield FileDamage(package=package, path=path, kind="broken", description=str(error))
    except OSError as error:
        yield FileDamage(
            package=package,
            path=path,
            kind="missing",
            description=_("cannot be read: {strerror}").format(strerror=error.strerror),
        )


def _is_text(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(256)
    return bool(head) and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)


def _fit_torch(site: str, paths: Sequence[str]) -> tuple[tuple[AbiMismatch, ...], tuple[str, ...]]:
    """Return the extensions with symbols that torch lacks, and all others that need torch."""
    own = f"{site}/torch/"
    if not Path(own, "lib").is_dir():
        return (), ()
    defined: set[bytes] = set()
    wanting: dict[str, frozenset[bytes]] = {}
    for path in paths:
        symbols = read_matching_symbols(path, _TORCH)
        if symbols is None:
            continue
        defined |= symbols.defined
        if not path.startswith(own) and symbols.undefined:
            wanting[path] = symbols.undefined
    gaps = {path: sorted(names - defined) for path, names in wanting.items()}
    found = tuple(
        AbiMismatch(path=path, count=len(names), example=names[0].decode("utf-8", "replace")[:100])
        for path, names in gaps.items()
        if names
    )
    return found, tuple(path for path, names in gaps.items() if not names)


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
