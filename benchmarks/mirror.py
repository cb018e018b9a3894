"""A package index on loopback that counts what it sends, so that no figure holds the time or weather of a network."""

from __future__ import annotations

import hashlib
import re
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import cast

BLOCK = 1 << 18
FRESH = {"Cache-Control": "max-age=600"}
FOREVER = {"Cache-Control": "max-age=31536000, immutable", "Accept-Ranges": "bytes"}


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Bytes of answers' bodies: of wheels, and of all else (pages, metadata); `wheels` are the files asked for."""

    wheel_bytes: int = 0
    other_bytes: int = 0
    wheels: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All bytes."""
        return self.wheel_bytes + self.other_bytes


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One file of the index."""

    path: Path
    sha256: str

    @cached_property
    def metadata(self) -> bytes:
        """The file METADATA in it."""
        with zipfile.ZipFile(self.path) as archive:
            names = archive.namelist()
            return archive.read(next(n for n in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)))

    def row(self) -> str:
        """Return its line of the index page.

        The metadata are offered by the name that PEP 714 gave them: pip 23.0, which Debian 12 has, knows only the older
        one and then rejects wheels ("has inconsistent Name").
        """
        sum_of_metadata = hashlib.sha256(self.metadata).hexdigest()
        href = f"/files/{self.path.name}#sha256={self.sha256}".replace("+", "%2B")
        return f'<a href="{href}" data-core-metadata="sha256={sum_of_metadata}">{self.path.name}</a><br/>'


class Mirror:
    """The index at `url`; `take` returns what it sent since it was last called."""

    def __init__(self, folder: Path, digests: Mapping[str, str]) -> None:
        self.wheels = {name: Wheel(path=folder / name, sha256=digest) for name, digest in digests.items()}
        self._sent = Sent()
        self._lock = threading.Lock()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self) -> Sent:
        """Return what was sent since the last call."""
        with self._lock:
            sent, self._sent = self._sent, Sent()
        return sent

    def count(self, size: int, wheel: str) -> None:
        """Add to what was sent; `wheel` is empty for a page."""
        with self._lock:
            old = self._sent
            self._sent = Sent(
                wheel_bytes=old.wheel_bytes + (size if wheel else 0),
                other_bytes=old.other_bytes + (0 if wheel else size),
                wheels=old.wheels if not wheel or wheel in old.wheels else (*old.wheels, wheel),
            )

    def page(self, name: str) -> bytes:
        """Return the index page of a project, empty when there is no file of it."""
        rows = [wheel.row() for file, wheel in sorted(self.wheels.items()) if _project(file.partition("-")[0]) == name]
        return f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>".encode() if rows else b""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mirror = mirror


def _project(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].replace("%2B", "+")
        name = path.rpartition("/")[2]
        if path.startswith("/simple/"):
            page = self._mirror.page(_project(path[len("/simple/") :].strip("/")))
            self._send(200 if page else 404, page, "text/html", FRESH)
        elif name in self._mirror.wheels:
            self._send_wheel(self._mirror.wheels[name])
        elif name.removesuffix(".metadata") in self._mirror.wheels:
            self._send(200, self._mirror.wheels[name.removesuffix(".metadata")].metadata, "text/plain", FOREVER)
        else:
            self._send(404, b"", "text/plain", {})

    def do_HEAD(self) -> None:
        self.do_GET()

    @property
    def _mirror(self) -> Mirror:
        return cast(_Server, self.server).mirror

    def _send_wheel(self, wheel: Wheel) -> None:
        data = wheel.path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not asked or not any(asked.groups()):
            self._send(200, data, "application/octet-stream", FOREVER, wheel.path.name)
            return
        first = int(asked[1]) if asked[1] else len(data) - int(asked[2])
        last = int(asked[2]) if asked[1] and asked[2] else len(data) - 1
        place = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        kind = "application/octet-stream"
        self._send(206, data[first : last + 1], kind, FOREVER | place, wheel.path.name)

    def _send(self, status: int, body: bytes, kind: str, headers: Mapping[str, str], wheel: str = "") -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            for first in range(0, len(body), BLOCK):
                self.wfile.write(memoryview(body)[first : first + BLOCK])
            self._mirror.count(len(body), wheel)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
