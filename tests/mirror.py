"""A mirror on loopback that can be told to misbehave, and the links to it."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlbox.artifacts.mirrors import DownloadLocation
from rlbox.target.artifact import Artifact, ArtifactKind

Answer = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request to the mirror; ways to answer it."""

    protocol_version = "HTTP/1.1"
    server: Mirror

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.asked.append((name, self.headers.get("Range", "")))
        self.server.answers.get(name, Request.send)(self)

    @property
    def body(self) -> bytes | None:
        """The bytes of the file that was asked for."""
        return self.server.files.get(self.path.lstrip("/"))

    def refuse(self, status: int) -> None:
        """Answer with a status and no file."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, *, ranges: bool = True, upto: int | None = None) -> None:
        """Answer with the file, or what the range names; `upto` bytes of it, then nothing more."""
        if self.body is None:
            self.refuse(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if ranges else None
        start = int(asked[1]) if asked else 0
        if start >= len(self.body) > 0:
            self.refuse(416)
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        self.send_header("Content-Length", str(len(self.body) - start))
        self.end_headers()
        self.trickle(self.body[start:upto])

    def trickle(self, data: bytes) -> None:
        """Send bytes at the mirror's pace."""
        step = self.server.block or len(data) or 1
        for at in range(0, len(data), step):
            self.wfile.write(data[at : at + step])
            self.wfile.flush()
            if self.server.pause_s:
                time.sleep(self.server.pause_s)

    def page(self) -> None:
        """Answer 200 with a web page."""
        text = b"<html>please log in</html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Mirror(ThreadingHTTPServer):
    """Files by name; `answers` takes the place of the usual answer for a name."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.files = dict(files)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str]] = []
        self.block, self.pause_s = 0, 0.0
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def times(self) -> Counter[str]:
        """How often each file was asked for."""
        return Counter(name for name, _ in self.asked)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the game."""


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[Mirror]:
    """Serve `files` while the block runs."""
    with Mirror(files) as mirror:
        thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield mirror
        finally:
            mirror.ended.set()
            mirror.shutdown()
            thread.join()


class FakeLocator:
    """Every file is at every one of the named bases."""

    def __init__(self, **bases: str) -> None:
        self.bases = bases
        self.skips: list[tuple[str, str]] = []
        self.skipped_mirrors: list[tuple[str, str]] = []

    def find_ordered_urls_reading_index_pages(self, artifact: Artifact) -> Iterator[DownloadLocation]:
        """Tell what is passed over, yield the address below each base."""
        while self.skips:
            self.record_and_report_skipped_mirror(*self.skips.pop())
        for mirror, base in self.bases.items():
            yield DownloadLocation(url=f"{base}/{artifact.file}", mirror=mirror)

    def record_and_report_skipped_mirror(self, mirror: str, reason: str) -> None:
        """Note what is passed over."""
        self.skipped_mirrors.append((mirror, reason))

    def list_git_urls(self, url: str) -> Iterator[DownloadLocation]:
        """Yield each base as a repository."""
        for mirror, base in self.bases.items():
            yield DownloadLocation(url=base, mirror=mirror)


def artifact_of(data: bytes, file: str = "a.whl", kind: ArtifactKind = "python", **more: Any) -> Artifact:
    """Return the artifact that has these bytes."""
    values = {"name": file.partition("-")[0].partition(".")[0], "group": "tools", **more}
    return Artifact(kind=kind, file=file, sha256=hashlib.sha256(data).hexdigest(), size=len(data), **values)
