"""Wheels made on the fly, and an index on loopback that has them beside the locked ones of rlbox itself."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile

from mirrorbox import MirrorServer

from rlbox.artifacts.object_store import ObjectStore
from rlbox.target.lock import Lock

FOREVER = {"Cache-Control": "max-age=31536000, immutable"}  # as real indexes say of files


class Index:
    """An index whose pages grow; what it is asked for is remembered until `forget`."""

    def __init__(self, server: MirrorServer) -> None:
        self._server = server
        self._files: dict[str, dict[str, str]] = {}

    @property
    def url(self) -> str:
        """The address that a rule names."""
        return f"{self._server.url}/simple"

    def add(self, name: str, file: str, body: bytes) -> None:
        """Offer a file of a project."""
        files = self._files.setdefault(name, {})
        address = self._server.file(f"/files/{file}", body, headers=FOREVER)
        files[file] = f"{address}#sha256={hashlib.sha256(body).hexdigest()}"
        self._server.index(f"/simple/{name}/", files)

    def add_runtime(self, lock: Lock, store: ObjectStore) -> None:
        """Offer what rlbox's own layer is made of."""
        for package in lock.runtime.packages:
            self.add(package.name, package.file, store.path(package.sha256).read_bytes())

    def forget(self) -> None:
        """Forget what was asked for."""
        self._server.asked.clear()

    def wheels_asked_for(self) -> set[str]:
        """Names of the wheels that were read, in whole or in part."""
        return {path.rpartition("/")[2] for path in self._server.asked if path.endswith(".whl")}


def make_wheel(name: str, version: str, size: int = 1000, **programs: str) -> tuple[str, bytes]:
    """Return name and bytes of a wheel with one module and `size` random bytes, as no wheel ever had them.

    `programs` are paths and texts of more of its files, which can be run.
    """
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = '{version}'\n".encode(),
        f"{name}/data.bin": os.urandom(size),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files |= {path: text.encode() for path, text in programs.items()}
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
            row = zipfile.ZipInfo(path, (2025, 1, 1, 0, 0, 0))
            row.external_attr = (0o100755 if path in programs else 0o100644) << 16
            archive.writestr(row, data)
    return f"{name}-{version}-py3-none-any.whl", body.getvalue()
