"""The sandbox over HTTP, on loopback: SandboxFusion's POST /run_code and GET /v1/ping, and POST /check of our own."""

from __future__ import annotations

import contextlib
import json
import resource
import select
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlbox.foreign import parse_json, whole_number
from rlbox.sandbox.answer import report_error
from rlbox.sandbox.pool import Pool
from rlbox.sandbox.request import InvalidRequestError, read_request
from rlbox.system.ports import LOOPBACK

_LONGEST = 64 << 20
"""Bytes of a request."""
_LARGE = 1 << 20
"""Bytes of a request from which on one is read at a time: what it becomes may be many times as large."""
_IDLE_S = 300
_SILENT = 1024
"""Connections at most that have not said yet what they want, or half of what this process may have open."""
_ASKED = {"/run_code": False, "/check": True}


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection; requests wait for their turn in the pool."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    wbufsize = 1 << 16  # head and body go out together
    pool: Pool
    server: _Server

    def handle_one_request(self) -> None:
        self.server.await_word(self.connection)
        super().handle_one_request()

    def finish(self) -> None:
        self.server.has_spoken(self.connection)
        super().finish()

    def do_GET(self) -> None:
        if self.path == "/v1/ping":
            self._answer(200, "pong")
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        size = whole_number(self.headers.get("Content-Length", ""))
        if size is None or size > _LONGEST:
            self.close_connection = True
            self._answer(413, {"detail": f"a request has a length of at most {_LONGEST} bytes"})
            return
        content = self.rfile.read(size)
        self.server.has_spoken(self.connection)
        if len(content) < size:
            self.close_connection = True
            return
        if self.path not in _ASKED:
            self._answer(404, {"detail": "Not Found"})
            return
        try:
            with self.server.large if size > _LARGE else contextlib.nullcontext():
                request = read_request(parse_json(content), checks=_ASKED[self.path])
        except (InvalidRequestError, ValueError) as error:
            self._answer(422, {"detail": f"no request: {error}"})
            return
        try:
            found = self.pool.run(request, self._is_awaited)
        except Exception as error:  # one request's trouble is not the next one's
            found = report_error(f"{type(error).__name__}: {error}")
        self._answer(200, found)

    def _is_awaited(self) -> bool:
        """Return whether the client is still there: programs of one that has gone away are not run."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        try:
            return not poll.poll(0) or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a line a program would fill the log."""


class _Server(ThreadingHTTPServer):
    """A connection that says nothing keeps nobody out: of too many, the one that was silent longest is ended."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, handler: type[_Handler]) -> None:
        self.large = threading.Lock()
        self._silent: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._most = min(_SILENT, hard // 2) if hard > 0 else _SILENT
        super().__init__((LOOPBACK, port), handler)

    def await_word(self, connection: socket.socket) -> None:
        """Note that a connection is to say what it wants."""
        with self._lock:
            self._silent.pop(connection, None)
            self._silent[connection] = None
            if len(self._silent) > self._most:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def has_spoken(self, connection: socket.socket) -> None:
        """Note that it has."""
        with self._lock:
            self._silent.pop(connection, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when a client goes away in the middle."""


def serve(pool: Pool, port: int) -> None:
    """Answer on 127.0.0.1 until this process is told to end."""
    handler = type("_Bound", (_Handler,), {"pool": pool})
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    with _Server(port, handler) as server:
        sys.stdout.write(f"code sandbox listens on 127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


def _stop(number: int, frame: object) -> None:
    raise SystemExit(0)
