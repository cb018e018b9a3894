"""The sandbox over HTTP, on loopback: SandboxFusion's POST /run_code and GET /v1/ping, and POST /check of our own."""

from __future__ import annotations

import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlbox.foreign import parse_json, whole_number
from rlbox.sandbox.act.pool import Pool
from rlbox.sandbox.answer import broken
from rlbox.sandbox.request import AskedWrong, read_request

_LONGEST = 64 << 20
"""Bytes of a request."""
_IDLE_S = 300
_ASKED = {"/run_code": False, "/check": True}


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection; requests wait for their turn in the pool."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    pool: Pool

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
        if self.path not in _ASKED:
            self._answer(404, {"detail": "Not Found"})
            return
        try:
            request = read_request(parse_json(content), checks=_ASKED[self.path])
        except (AskedWrong, ValueError) as error:
            self._answer(422, {"detail": f"no request: {error}"})
            return
        try:
            found = self.pool.run(request)
        except Exception as error:  # one request's trouble is not the next one's
            found = broken(f"{type(error).__name__}: {error}")
        self._answer(200, found)

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
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when a client goes away in the middle."""


def serve(pool: Pool, port: int) -> None:
    """Answer on 127.0.0.1 until this process is told to end."""
    handler = type("_Bound", (_Handler,), {"pool": pool})
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    with _Server(("127.0.0.1", port), handler) as server:
        sys.stdout.write(f"code sandbox listens on 127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


def _stop(number: int, frame: object) -> None:
    raise SystemExit(0)
