"""A registry in this process, on loopback: it keeps blobs and manifests, and fails as it is told to."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from rlbox.engine.oci import (
    MANIFEST_TYPE,
    Descriptor,
)

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"

USER, PASSWORD, TOKEN = "mira", "open sesame", "t0ken"


@dataclass
class Fault:
    """What happens to the next `times` requests that match, instead of the right thing.

    `late_s` is waited for first. `cut` sends the whole length but only half of the bytes; `status` 0 closes the
    connection without a word.
    """

    method: str
    path: str
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    cut: bool = False
    late_s: float = 0


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    size: int


def log_in(host: str, folder: Path, password: str = PASSWORD) -> None:
    """Write into a folder what `docker login` does."""
    folder.mkdir(exist_ok=True)
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def descriptor_to_json(descriptor: Descriptor) -> dict[str, Any]:
    value = {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}
    return {**value, **({"annotations": dict(descriptor.annotations)} if descriptor.annotations else {})}


def create_image_manifest(config: Descriptor, layers: Sequence[Descriptor]) -> bytes:
    value: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": descriptor_to_json(config)}
    return json.dumps(value | {"layers": [descriptor_to_json(layer) for layer in layers]}).encode()


class RegistryServer:
    """The registry; `auth` is "", "basic" or "bearer"."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.auth = ""
        self.redirect = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        cast(Any, self._server).registry = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005})
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def speak_tls(self, certificate: Path, key: Path) -> None:
        """Speak TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def add_blob(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def add_manifest(self, tag: str, body: bytes, kind: str) -> str:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[tag] = self.manifests[digest] = (kind, body)
        return digest

    def count(self, method: str, path: str = "") -> int:
        return sum(1 for seen in self.seen if seen.method == method and re.search(path, seen.path))

    def take_fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method == method and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return None

    def authorized(self, header: str) -> bool:
        if self.auth == "bearer":
            return header == f"Bearer {TOKEN}"
        return not self.auth or header == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def challenge(self) -> str:
        if self.auth == "basic":
            return 'Basic realm="here"'
        return f'Bearer realm="http://{self.host}/token",service="here"'


@contextmanager
def running() -> Iterator[RegistryServer]:
    """A registry that is closed at the end."""
    server = RegistryServer()
    try:
        yield server
    finally:
        server.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        path = urlsplit(self.path).path
        size = int(self.headers.get("Content-Length") or 0)
        fault = self.registry.take_fault(self.command, path)
        body = self.rfile.read(size)
        self.registry.seen.append(Seen(self.command, self.path, dict(self.headers), size))
        if fault:
            time.sleep(fault.late_s)
        if fault and not fault.status:
            self.close_connection = True
        elif fault and fault.cut:
            self._cut(path)
        elif fault:
            self._answer(fault.status, fault.body, **fault.headers)
        elif path == "/token":
            self._token()
        elif not self.registry.authorized(self.headers.get("Authorization", "")):
            self._answer(401, b"{}", **{"WWW-Authenticate": self.registry.challenge()})
        else:
            self._route(path, body)

    def do_GET(self) -> None:
        self._any()

    def do_POST(self) -> None:
        self._any()

    @property
    def registry(self) -> RegistryServer:
        return cast(Any, self.server).registry

    def _token(self) -> None:
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != basic:
            self._answer(401, b'{"details": "incorrect username or password"}')
        else:
            self._json({"token": TOKEN})

    def _route(self, path: str, body: bytes) -> None:
        if path == "/v2/":
            self._json({})
        elif found := re.search(r"/manifests/(.+)$", path):
            self._manifest(found.group(1))
        elif found := re.search(r"/(?:blobs|elsewhere)/(sha256:.+)$", path):
            self._blob(path, found.group(1))
        else:
            self._answer(404, b'{"errors": [{"code": "NAME_UNKNOWN", "message": "not here"}]}')

    def _manifest(self, reference: str) -> None:
        if reference in self.registry.manifests:
            kind, body = self.registry.manifests[reference]
            self._answer(200, body, **{"Content-Type": kind})
        else:
            self._answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')

    def _blob(self, path: str, digest: str) -> None:
        data = self.registry.blobs.get(digest)
        if data is None:
            self._answer(404, b"")
        elif self.registry.redirect and "/elsewhere/" not in path:
            self._answer(307, b"", Location=f"http://localhost:{self.registry.host[10:]}/elsewhere/{digest}")
        elif start := re.search(r"bytes=(\d+)-", self.headers.get("Range", "")):
            first = int(start.group(1))
            place = f"bytes {first}-{len(data) - 1}/{len(data)}"
            self._answer(206, data[first:], **{"Content-Range": place})
        else:
            self._answer(200, data)

    def _cut(self, path: str) -> None:
        data = self.registry.blobs[path.rpartition("/")[2]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.close_connection = True

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: object) -> None:
        pass
