"""A registry for the engine tests, a proxy before it that counts and fails as told, and small images to send."""

from __future__ import annotations

import http.client
import itertools
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

REGISTRY = os.environ.get("RLBOX_TEST_REGISTRY", "127.0.0.1:5000")
SAID = "hello from the image\n"
TARGET = """
title = "an image made by hand"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "libs"
packages = ["six==1.16.0"]
"""
_UNPACKED = Path(__file__).parents[2] / ".venv/tools/usr/bin/docker-registry"


def answers(host: str) -> bool:
    """Return whether something listens at `HOST:PORT`."""
    name, _, port = host.rpartition(":")
    try:
        socket.create_connection((name, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def registry_running(folder: Path, address: str = "127.0.0.1") -> Iterator[str]:
    """Yield the address of a registry: the one that is named, or one started here; at another address always that."""
    if address == "127.0.0.1" and answers(REGISTRY):
        yield REGISTRY
        return
    program = shutil.which("docker-registry") or _UNPACKED
    assert Path(program).exists(), f"no registry answers at {REGISTRY}; scripts/ensure-test-tools.sh brings the program"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    listens, settings = f"{address}:{host.rpartition(':')[2]}", folder / "registry.yml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: '{listens}'}}\n"
    )
    process = subprocess.Popen([program, "serve", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            if answers(host):
                break
            time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait()


@dataclass
class Proxy:
    """Forwards to a registry; its own address is a registry that no engine has met before.

    `uploaded` holds the digests of blobs that were sent whole; `fail` answers matching requests with a status and
    body, `times` of them; all uploads but the first `allow` stall until who sends them gives up; `swap` replaces bodies
    of manifests.
    """

    backend: str
    host: str = ""
    uploaded: list[str] = field(default_factory=list)
    bytes_up: int = 0
    fail: tuple[str, int, bytes, dict[str, str]] | None = None
    times: int = 0
    allow: int = 1000
    begun: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    swap: bytes = b""
    busy: int = 0


@contextmanager
def proxied(backend: str) -> Iterator[Proxy]:
    """Yield a proxy on a port of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Forward)
    server.daemon_threads = True
    server.handle_error = lambda *connection: None  # type: ignore[method-assign]  # an engine that hangs up is no news
    proxy = Proxy(backend=backend, host=f"127.0.0.1:{server.server_port}")
    cast(Any, server).proxy = proxy
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def proxy(self) -> Proxy:
        return cast(Any, self.server).proxy

    def parse_request(self) -> bool:
        """Engines try TLS first, and take to plain http when the answer to that is HTTP."""
        if self.raw_requestline.startswith(b"\x16"):
            self.close_connection = True
            self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            return False
        return super().parse_request()

    def do_GET(self) -> None:
        self._forward()

    def do_HEAD(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def do_PUT(self) -> None:
        self._forward()

    def do_PATCH(self) -> None:
        self._forward()

    def _forward(self) -> None:
        proxy = self.proxy
        proxy.busy += 1
        try:
            number = next(proxy.begun) if self.command == "PUT" and "/uploads/" in self.path else 0
            body = b"".join(self._chunks())
            while number > proxy.allow:
                if self._given_up():
                    raise ConnectionResetError
                time.sleep(0.01)
            if proxy.times and proxy.fail and re.search(proxy.fail[0], f"{self.command} {self.path}"):
                proxy.times -= 1
                _, status, words, headers = proxy.fail
                self._answer(status, list(headers.items()), words)
                return
            self._relay(body)
        except OSError:
            self.close_connection = True
        finally:
            proxy.busy -= 1

    def _given_up(self) -> bool:
        """Return whether the other side closed the connection, which shows once all it sent before is read."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _relay(self, body: bytes) -> None:
        connection = http.client.HTTPConnection(self.proxy.backend, timeout=60)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "transfer-encoding"}
        connection.request(self.command, self.path, body=body, headers={**headers, "Content-Length": str(len(body))})
        response = connection.getresponse()
        data = response.read()
        if self.proxy.swap and self.command == "GET" and "/manifests/" in self.path:
            data = self.proxy.swap
        if self.command == "PUT" and response.status == 201 and (found := re.search("digest=(sha256.+)$", self.path)):
            self.proxy.uploaded.append(found.group(1).replace("%3A", ":"))
        if "/uploads/" in self.path:
            self.proxy.bytes_up += len(body)
        self._answer(response.status, response.getheaders(), data)
        connection.close()

    def _chunks(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().strip() or b"0", 16):
                yield from self._read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            yield from self._read(int(self.headers.get("Content-Length") or 0))

    def _read(self, size: int) -> Iterator[bytes]:
        while size:
            data = self.rfile.read(min(size, 1 << 16))
            if not data:
                raise ConnectionResetError
            size -= len(data)
            yield data

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), "")
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def program() -> bytes:
    """Return the smallest Linux program: it prints `SAID`, needs no library, and makes an image without a base."""
    text, origin, head = SAID.encode(), 0x400000, 0x78

    def code(address: int) -> bytes:
        write = b"\xb8\x01\0\0\0\xbf\x01\0\0\0\xbe" + struct.pack("<I", address)
        return write + b"\xba" + struct.pack("<I", len(text)) + b"\x0f\x05\xb8\x3c\0\0\0\x31\xff\x0f\x05"

    body = code(origin + head + len(code(0))) + text
    size = head + len(body)
    elf = b"\x7fELF\x02\x01\x01" + bytes(9)
    elf += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, origin + head, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return elf + struct.pack("<IIQQQQQQ", 1, 5, 0, origin, origin, size, size, 0x1000) + body


def build(tag: str, folder: Path, layers: int, size: int, env: dict[str, str]) -> None:
    """Build an image of `layers` layers with `size` random bytes each, whose command prints `SAID`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hello").write_bytes(program())
    (folder / "hello").chmod(0o755)
    lines = ["FROM scratch"]
    for number in range(layers):
        (folder / f"data{number}").write_bytes(os.urandom(size))
        lines.append(f"COPY data{number} /data{number}")
    (folder / "Dockerfile").write_text("\n".join([*lines, "COPY hello /hello", 'CMD ["/hello"]\n']))
    output = "--output=type=image,compression=zstd,compression-level=3,oci-mediatypes=true"
    words = ["docker", "buildx", "build", "--provenance=false", "--quiet", f"--tag={tag}", output, str(folder)]
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
