"""Layers of images as tar archives, made of a few words."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlbox.engine import oci
from rlbox.system.compression import zstd

Entry = tuple[str, str]
"""A path and its text; `-> TO` is a link, `= PATH` a second name, `/` a folder, `!c` a device, `!p` a pipe."""
_KINDS = {"/": tarfile.DIRTYPE, "!c": tarfile.CHRTYPE, "!p": tarfile.FIFOTYPE}


def layer(*entries: Entry, packed: str = "gzip", modes: dict[str, int] | None = None) -> bytes:
    """Return a layer with `entries` in their order, packed with gzip, zstd or nothing."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in entries:
            member = tarfile.TarInfo(name)
            member.mtime, member.mode = 1_700_000_000, (modes or {}).get(name, 0o755 if text == "/" else 0o644)
            member.uid = member.gid = 12345
            if text[:3] == "-> ":
                member.type, member.linkname = tarfile.SYMTYPE, text[3:]
            elif text[:2] == "= ":
                member.type, member.linkname = tarfile.LNKTYPE, text[2:]
            elif text in _KINDS:
                member.type = _KINDS[text]
            else:
                member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return {"gzip": gzip_packed, "zstd": zstd.compress, "": bytes}[packed](plain.getvalue())


def gzip_packed(data: bytes) -> bytes:
    """Return the data packed with gzip, the same for the same data."""
    return gzip.compress(data, compresslevel=1, mtime=0)


def python_files() -> tuple[dict[str, Path], str]:
    """Return the files of a Python as an image has them (`usr/bin/python3`, its library), and where its packages go.

    It is the one that runs the tests, without what only its developers need.
    """
    base = Path(sys.base_prefix)
    number = f"{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(os.path.realpath(base / f"bin/python{number}"))
    asked = [str(program), "-I", "-c", "import site; print(site.getsitepackages()[0])"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    found = {f"usr/bin/python{number}": program}
    library = base / f"lib/python{number}"
    for path in library.rglob("*"):
        parts = path.relative_to(library).parts
        if not path.is_file() or any(part in _NOT_NEEDED or part.startswith("config-") for part in parts):
            continue
        found[f"usr/lib/python{number}/{'/'.join(parts)}"] = path
    return found, f"usr/{site.relative_to(base).as_posix()}"


_NOT_NEEDED = ("test", "tests", "__pycache__", "idlelib", "lib2to3", "tkinter", "ensurepip", "pydoc_data", "turtledemo")
_NOT_NEEDED += ("site-packages", "dist-packages")


def files_layer(files: Mapping[str, Path]) -> bytes:
    """Return a layer of files of this machine."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, path in files.items():
            tar.add(path.resolve(), arcname=name)
    return packed.getvalue()


def package(site: str, name: str, version: str, text: str) -> list[Entry]:
    """Return the entries of an installed package."""
    module = name.replace("-", "_")
    info = f"{site}/{module}-{version}.dist-info"
    told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    return [(f"{site}/{module}/__init__.py", text), (f"{info}/METADATA", told)]


def image_of(add_blob: Callable[[bytes], str], layers: Sequence[bytes], env: Sequence[str]) -> bytes:
    """Hand an image's blobs to `add_blob`, and return its manifest."""
    config = oci.document({"os": "linux", "architecture": "amd64", "config": {"Env": list(env)}})
    rows = [oci.describe(data, f"{oci.LAYER}+gzip") for data in layers]
    for data in (config, *layers):
        add_blob(data)
    return oci.image_manifest(oci.describe(config, oci.CONFIG), rows)
