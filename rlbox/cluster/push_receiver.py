"""A registry in this process that the engine pushes to: it takes those parts of an image that are wanted."""

from __future__ import annotations

import http.server
import os
import re
import secrets
import shutil
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from rlbox.engine.oci import compute_digest
from rlbox.errors import EngineError
from rlbox.i18n import _
from rlbox.system.compression import DigestReader
from rlbox.system.files import cache_path
from rlbox.terminal import remove_controls

_BLOCK = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_STALLED_S = 600.0
_LOOK_S = 0.02


class PushReceiver:
    """What was pushed: manifests by digest, parts as files; `wanted` says which parts a push has to bring."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.wanted: Callable[[str], bool] = lambda digest: True
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.tags: dict[str, str] = {}
        self.claimed: set[str] = set()
        self._growing: dict[str, int] = {}
        self._ended: set[str] = set()
        self._failed: Exception | None = None
        self._news = threading.Condition()

    def path(self, digest: str) -> Path:
        """Return where a part is, or would be."""
        return self._folder / digest.partition(":")[2]

    def has(self, digest: str) -> bool:
        """Whether a part is here whole."""
        return digest in self._ended

    def missing(self, digest: str) -> bool:
        """Whether a push has to bring a part; one that it need not is said to be there."""
        if self.has(digest):
            return False
        if self.wanted(digest):
            return True
        self.claimed.add(digest)
        return False

    def grew(self, digest: str, size: int, *, ended: bool = False) -> None:
        """Note how far a part has come."""
        with self._news:
            self._growing[digest] = size
            if ended:
                self._ended.add(digest)
            self._news.notify_all()

    def add(self, chunks: Iterable[bytes], digest: str = "") -> tuple[str, int]:
        """Add a part that is made here; return its digest and size.

        One whose `digest` is known is given as it grows; `EngineError` where it becomes another.
        """
        draft, hashed = self.path(digest or f":made-{secrets.token_hex(8)}"), DigestReader()
        with draft.open("wb") as file:
            for chunk in chunks:
                file.write(hashed.update(chunk))
                if digest:
                    file.flush()
                    self.grew(digest, hashed.size)
        if digest and hashed.digest != digest:
            raise EngineError(
                _("a layer is packed otherwise than before: {digest}").format(digest=hashed.digest), where=digest
            )
        draft.replace(self.path(hashed.digest))
        self.grew(hashed.digest, hashed.size, ended=True)
        return hashed.digest, hashed.size

    def fail(self, why: Exception | None) -> None:
        """End the waiting for parts that will not come; None: they are asked for anew."""
        with self._news:
            self._failed = why
            self._news.notify_all()

    def blocks(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        """Yield a part from a place on, while it still comes.

        Raises
        ------
        RlboxError, OSError
            What was to bring it failed.
        EngineError
            Nothing more came for ten minutes.
        """
        while at < size:
            with self._news:
                until = time.monotonic() + _STALLED_S
                while self._growing.get(digest, 0) <= at:
                    if self._failed:
                        raise self._failed
                    if not self._news.wait(until - time.monotonic()):
                        raise EngineError(_("the engine here brings no more of the image"), where=digest)
            with self.path(digest).open("rb") as file:
                file.seek(at)
                while block := file.read(_BLOCK):
                    yield block
                    at += len(block)


@contextmanager
def spooling() -> Iterator[tuple[PushReceiver, str]]:
    """Yield a spool, and the `HOST:PORT` at which it takes pushes while the block runs; its files are gone then."""
    folder = cache_path("nodes", secrets.token_hex(8))
    folder.mkdir(parents=True)
    spool = PushReceiver(folder)

    class Takes(_Takes):
        def setup(self) -> None:
            self.spool = spool
            super().setup()

    server = _Server(("127.0.0.1", 0), Takes)
    threading.Thread(target=server.serve_forever, args=(_LOOK_S,), name="spool", daemon=True).start()
    try:
        yield spool, f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        shutil.rmtree(folder, ignore_errors=True)


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64  # an engine connects for many parts at once; one that is not let in asks a second later


class _Takes(http.server.BaseHTTPRequestHandler):
    """The part of the distribution API that a push needs."""

    protocol_version = default_request_version = "HTTP/1.1"  # so answers what speaks TLS, and then tries plain http
    spool: PushReceiver

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._get(body=False)

    def do_GET(self) -> None:
        self._get(body=True)

    def _get(self, *, body: bool) -> None:
        *__, kind, what = self.path.partition("?")[0].split("/")
        if self.path == "/v2/":
            self._answer(200, b"{}" if body else b"", {"Content-Type": "application/json"}, size=2)
        elif kind == "blobs" and _DIGEST.fullmatch(what):
            there = not self.spool.missing(what)
            self._answer(200 if there else 404, b"", {"Docker-Content-Digest": what} if there else {})
        elif kind == "manifests" and (found := self.spool.manifests.get(self.spool.tags.get(what, what))):
            head = {"Content-Type": found[0], "Docker-Content-Digest": compute_digest(found[1])}
            self._answer(200, found[1] if body else b"", head, size=len(found[1]))
        else:
            self._answer(404)

    def do_POST(self) -> None:
        self._read()
        place = f"{urlsplit(self.path).path.rstrip('/')}/{secrets.token_hex(8)}"
        self._answer(202, b"", {"Location": place, "Range": "0-0"})

    def do_PATCH(self) -> None:
        end = self._store(self._upload(), "")
        self._answer(202, b"", {"Location": self.path, "Range": f"0-{end - 1}"})

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        *__, kind, what = url.path.split("/")
        if kind == "manifests":
            text = self._read()
            digest = compute_digest(text)
            self.spool.manifests[digest] = (self.headers.get("Content-Type", ""), text)
            self.spool.tags[what] = digest
            self._answer(201, b"", {"Docker-Content-Digest": digest})
            return
        digest = (parse_qs(url.query).get("digest") or [""])[0]
        if not _DIGEST.fullmatch(digest):
            self._answer(400)
            return
        part, goal = self._upload(), self.spool.path(digest)
        if part.exists():
            end = self._store(part, "")
            part.replace(goal)
        else:
            goal.unlink(missing_ok=True)
            end = self._store(goal, digest)
        self.spool.grew(digest, end, ended=True)
        self._answer(201, b"", {"Docker-Content-Digest": digest})

    def _upload(self) -> Path:
        return self.spool._folder / ("upload-" + urlsplit(self.path).path.rpartition("/")[2][:32])

    def _store(self, path: Path, digest: str) -> int:
        """Add what comes to a file, told of as it grows where its digest is known; return the file's size."""
        with path.open("ab") as file:
            for block in self._blocks():
                file.write(block)
                if digest:
                    file.flush()
                    self.spool.grew(digest, file.tell())
            file.flush()
            return os.fstat(file.fileno()).st_size

    def _read(self) -> bytes:
        return b"".join(self._blocks())

    def _blocks(self) -> Iterator[bytes]:
        """Yield the body, of a known length or in chunks."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield from self._exactly(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        yield from self._exactly(int(self.headers.get("Content-Length") or 0))

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size and (block := self.rfile.read(min(size, _BLOCK))):
            size -= len(block)
            yield block

    def _answer(self, status: int, body: bytes = b"", head: dict[str, str] | None = None, size: int = -1) -> None:
        self.send_response(status)
        for name, value in (head or {}).items():
            self.send_header(name, remove_controls(value))
        self.send_header("Content-Length", str(len(body) if size < 0 else size))
        self.end_headers()
        self.wfile.write(body)
