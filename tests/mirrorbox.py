"""Mirrors on this machine's loopback: real HTTP, with the habits that mirrors have."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

from rlbox.target.artifact import Artifact, ArtifactKind


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a path is answered with; one that `stalls` sends the head and not a byte more.

    A header without a value is left out: a server that says no `Content-Length` ends the connection instead.
    """

    status: int = 200
    body: bytes = b""
    kind: str = "application/octet-stream"
    headers: dict[str, str] = field(default_factory=dict)
    stalls: bool = False


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that hang up: those who only look at the head of a file do."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class MirrorServer:
    """One host; paths that it does not know are answered 404."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.ended = threading.Event()
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005})
        self._thread.start()

    def close(self) -> None:
        """Stop answering; the port refuses connections from then on."""
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def file(self, path: str, body: bytes, **more: object) -> str:
        """Offer a file and return its address."""
        self.answers[path] = Answer(body=body, **more)  # type: ignore[arg-type]
        return self.url + quote(path)

    def index(self, path: str, links: dict[str, str], digests: dict[str, str] | None = None) -> None:
        """Offer a PEP 503 page: file names to addresses, absolute or relative."""
        rows = [f'<a href="{url}{_fragment(digests, name)}">{name}</a><br/>' for name, url in links.items()]
        page = f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>"
        self.answers[path] = Answer(body=page.encode(), kind="text/html")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = unquote(self.path)
                server.asked.append(path)
                answer = server.answers.get(path, Answer(status=404, kind="text/html", body=b"<h1>Not Found</h1>"))
                body, status, more = answer.body, answer.status, dict(answer.headers)
                wanted = self.headers.get("Range", "")
                if wanted and status == 200:
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    end = min(int(last or len(body) - 1), len(body) - 1)
                    more["Content-Range"] = f"bytes {first}-{end}/{len(body)}"
                    status, body = 206, body[int(first) : end + 1]
                self.send_response(status)
                for name, value in {"Content-Type": answer.kind, "Content-Length": str(len(body)), **more}.items():
                    if value:
                        self.send_header(name, value)
                self.end_headers()
                if answer.stalls:
                    server.ended.wait(30)
                elif self.command == "GET":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _fragment(digests: dict[str, str] | None, name: str) -> str:
    return f"#sha256={digests[name]}" if digests and name in digests else ""


@contextmanager
def mirrors(count: int) -> Iterator[list[MirrorServer]]:
    """Yield so many hosts."""
    servers = [MirrorServer() for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            if not server.ended.is_set():
                server.close()


def artifact(
    body: bytes, file: str = "six-1.16.0-py2.py3-none-any.whl", kind: ArtifactKind = "python", **more: str
) -> Artifact:
    """Return what a lock says of a file with these bytes."""
    values = {"name": "six", "group": "tools", "origin": "", **more}
    return Artifact(kind=kind, file=file, sha256=sha256(body), size=len(body), **values)


def sha256(body: bytes) -> str:
    """Return the digest, hex."""
    return hashlib.sha256(body).hexdigest()
