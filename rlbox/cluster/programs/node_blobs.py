"""The parts of an image on a node: they come over the connection or from another node, and its engine pulls them here.

A part that came in half stays, and goes on from there. Whoever knows the word in its address may read it, and nothing
else; the engine itself proves each by its digest.
"""

from __future__ import annotations

import http.server
import os
import socketserver
import threading
from typing import TYPE_CHECKING

from rlbox.cluster.programs.node_files import Beneath
from rlbox.cluster.programs.node_http import blocks_from
from rlbox.cluster.programs.node_wire import BLOCK, NodeFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlbox.cluster.programs.node_wire import Row

_STALLED_S = 600.0


class Blobs:
    """A folder of parts, each a file with the digits of its digest as name, and who is told which are wanted."""

    def __init__(self, disk: str, path: str, row: Row, want: Callable[[Row], None]) -> None:
        self._want = want
        self._folder = Beneath(disk, path.split("/"), create=True)
        self.word, self.manifests, self.sizes = row["word"], row["manifests"], row["sizes"]
        self.upstream: list[object] = row.get("upstream") or []
        self._asked: set[str] = set()
        self._failed = ""
        self._news = threading.Condition()
        self._servers: list[socketserver.BaseServer] = []

    # ---- what is here

    def length(self, digest: str) -> int:
        """Return how many bytes of a part are here."""
        try:
            return os.stat(_name(digest), dir_fd=self._folder.handle, follow_symlinks=False).st_size
        except OSError:
            return 0

    def write(self, digest: str, at: int, blocks: Iterable[bytes]) -> None:
        """Put bytes of a part behind those that are here; all of them are taken, whatever becomes of them.

        Where some before them could not be written, nothing is: a part is never longer than what came of it.
        """
        handle = -1
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(_name(digest), flags, 0o600, dir_fd=self._folder.handle)
            if os.fstat(handle).st_size < at:
                os.close(handle)
                handle = -1
            else:
                os.ftruncate(handle, at)
                os.lseek(handle, at, os.SEEK_SET)
        except OSError as error:
            self._fail(error.strerror or str(error))
        for block in blocks:
            try:
                while handle >= 0 and block:
                    block = block[os.write(handle, block) :]
            except OSError as error:
                self._fail(error.strerror or str(error))
                break
            with self._news:
                self._news.notify_all()
        for _ in blocks:  # what could not be written is read all the same: rows come behind it
            pass
        if handle >= 0:
            os.close(handle)

    def _fail(self, why: str) -> None:
        with self._news:
            self._failed = self._failed or why
            self._news.notify_all()

    @property
    def failed(self) -> str:
        """Why no more can be taken, empty while it can."""
        return self._failed

    def ask(self, digest: str) -> None:
        """Have a part brought that is not whole, once."""
        with self._news:
            if digest in self._asked or self.length(digest) >= self.sizes[digest]:
                return
            self._asked.add(digest)
        if self.upstream:
            threading.Thread(target=self._fetch, args=(digest,), daemon=True).start()
        else:
            self._want({"want": digest, "at": self.length(digest)})

    def _fetch(self, digest: str) -> None:
        """Bring a part from another node; where that does not go, it is wanted as if there were none."""
        address, port = str(self.upstream[0]), int(str(self.upstream[1]))
        at = self.length(digest)
        self.write(digest, at, blocks_from(address, port, f"/v2/{self.word}/blobs/{digest}", at, _STALLED_S))
        if self.length(digest) < self.sizes[digest]:
            self._want({"want": digest, "at": self.length(digest)})
        else:
            self._want({"came": digest, "bytes": self.sizes[digest]})

    def read(self, digest: str, at: int, send: Callable[[bytes], object]) -> None:
        """Send a part from a place on, as it comes; `NodeFailed` when nothing more does."""
        size = self.sizes[digest]
        handle = -1
        try:
            while at < size:
                self._wait(digest, at)
                if handle < 0:
                    handle = os.open(_name(digest), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._folder.handle)
                block = os.pread(handle, BLOCK, at)
                send(block)
                at += len(block)
        finally:
            if handle >= 0:
                os.close(handle)

    def _wait(self, digest: str, at: int) -> None:
        with self._news:
            while self.length(digest) <= at:
                if self._failed or not self._news.wait(_STALLED_S):
                    raise NodeFailed(self._failed or "no bytes come", "stalled")

    # ---- serve

    def serve(self, address: str, port: int) -> int:
        """Answer at an address and port, 0 for one of the kernel's choice; return the port."""
        blobs = self

        class Answers(_Answers):
            def setup(self) -> None:
                self.blobs = blobs
                super().setup()

        server = _Server((address, port), Answers)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_address[1])

    def close(self) -> None:
        """End all servers; what came stays, so that another call goes on from there."""
        self._fail("it has ended")
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers = []
        self._folder.close()


def _name(digest: str) -> str:
    name = digest.rpartition(":")[2]
    if len(name) != 64 or not all(one in "0123456789abcdef" for one in name):
        raise NodeFailed("no digest")
    return name


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64  # engines and nodes connect for many parts at once


class _Answers(http.server.BaseHTTPRequestHandler):
    """What an engine asks of a registry that it pulls from."""

    protocol_version = default_request_version = "HTTP/1.1"  # so answers what speaks TLS, and then tries plain http
    blobs: Blobs

    def do_GET(self) -> None:
        self._say(body=True)

    def do_HEAD(self) -> None:
        self._say(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: standard error is that of ssh."""

    def _say(self, body: bool) -> None:
        parts = self.path.partition("?")[0].split("/")
        kind, what = parts[-2], parts[-1]
        if self.path == "/v2/":
            self._head(200, 2, "application/json")
            if body:
                self.wfile.write(b"{}")
        elif len(parts) < 4 or parts[2] != self.blobs.word:
            self._head(404, 0, "text/plain")
        elif kind == "manifests" and what in self.blobs.manifests:
            row = self.blobs.manifests[what]
            text = row["text"].encode()
            self._head(200, len(text), row["type"], what)
            if body:
                self.wfile.write(text)
        elif kind == "blobs" and what in self.blobs.sizes:
            self._blob(what, body)
        else:
            self._head(404, 0, "text/plain")

    def _blob(self, digest: str, body: bool) -> None:
        size, wanted = self.blobs.sizes[digest], self.headers.get("Range", "")
        first = wanted[len("bytes=") :].partition("-")[0] if wanted.startswith("bytes=") else ""
        at = min(int(first), size) if first.isdigit() else 0
        if body:
            self.blobs.ask(digest)
        span = f"bytes {at}-{size - 1}/{size}" if first.isdigit() else ""
        self._head(206 if span else 200, size - at, "application/octet-stream", digest, span)
        if body:
            try:
                self.blobs.read(digest, at, self.wfile.write)
            except (NodeFailed, OSError):
                self.close_connection = True

    def _head(self, status: int, size: int, kind: str, digest: str = "", span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
