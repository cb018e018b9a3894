"""A run as a page that follows it: on this machine alone, to be read and nothing else."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rlbox.errors import RlboxError
from rlbox.system.ports import LOOPBACK

_FOLLOWED = ("run.json", "events.jsonl", "resources.jsonl")


class LivePageServer(ThreadingHTTPServer):
    """Serves what `render_page` makes of a run, created again when the run's record has grown.

    Only names of this machine are answered: a page of somebody else's that a browser was led to (DNS rebinding) gets
    nothing. There is no route that changes anything.

    Raises
    ------
    OSError
        The port is taken.
    """

    daemon_threads = True

    def __init__(self, run_dir: Path, render_page: Callable[[], str], port: int = 0) -> None:
        self._run_dir, self._render_page = run_dir, render_page
        self._made: tuple[str, str] = ("", "")
        self._making = threading.Lock()
        super().__init__((LOOPBACK, port), _Handler)
        self.port = int(self.server_address[1])

    def _get_etag_and_page(self) -> tuple[str, str]:
        with self._making:  # two browsers look at one page
            paths = [path for name in _FOLLOWED if (path := self._run_dir / name).is_file()]
            stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
            tag = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
            if tag != self._made[0]:
                self._made = tag, self._render_page()
            return self._made

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who looked has gone, or asks again in two seconds."""


class _Handler(BaseHTTPRequestHandler):
    server: LivePageServer

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in {f"{name}:{self.server.port}" for name in (LOOPBACK, "localhost")}:
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        if self.path.partition("?")[0] not in ("/", "/page"):
            return self.send_error(HTTPStatus.NOT_FOUND)
        try:
            tag, page = self.server._get_etag_and_page()
        except (RlboxError, OSError) as error:  # a record that is being written; the browser asks again
            return self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
        if self.headers.get("If-None-Match") == f'"{tag}"':
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.end_headers()
            return None
        data = page.encode("utf-8", "replace")
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(data))),
            ("ETag", f'"{tag}"'),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a terminal is not told of every look."""
