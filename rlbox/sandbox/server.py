"""The sandbox over HTTP, on loopback: SandboxFusion's POST /run_code and GET /v1/ping, and POST /check of our own."""

from __future__ import annotations

import json
import select
import signal
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlbox.foreign import parse_json, whole_number
from rlbox.sandbox.request import InvalidRequestError, parse_request
from rlbox.sandbox.response import build_error_response
from rlbox.sandbox.sandbox import Sandbox
from rlbox.system.ports import LOOPBACK

_MAX_REQUEST = 64 << 20
"""Bytes."""
_IDLE_S = 300
_HAS_TESTS = {"/run_code": False, "/check": True}


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection; requests wait for their turn in the sandbox."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    wbufsize = 1 << 16  # head and body go out together
    sandbox: Sandbox

    def do_GET(self) -> None:
        if self.path == "/v1/ping":
            self._send(200, "pong")
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        size = whole_number(self.headers.get("Content-Length", ""))
        if size is None or size > _MAX_REQUEST:
            self.close_connection = True
            self._send(413, {"detail": f"a request has a length of at most {_MAX_REQUEST} bytes"})
            return
        content = self.rfile.read(size)
        if len(content) < size:
            self.close_connection = True
            return
        if self.path not in _HAS_TESTS:
            self._send(404, {"detail": "Not Found"})
            return
        try:
            document = parse_json(content, allow_surrogates=True)
            request = parse_request(document, has_tests=_HAS_TESTS[self.path])
        except (InvalidRequestError, ValueError) as error:
            self._send(422, {"detail": f"no request: {error}"})
            return
        try:
            response = self.sandbox.run(request, self._is_awaited)
        except Exception as error:  # a failure of one request must not end the others
            response = build_error_response(f"{type(error).__name__}: {error}")
        self._send(200, response)

    def _is_awaited(self) -> bool:
        """Return whether the client is still connected."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        try:
            return not poll.poll(0) or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _send(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for each program would fill the log."""


class _Server(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing when a client goes away in the middle."""


def serve(sandbox: Sandbox, port: int) -> None:
    """Answer on 127.0.0.1 until this process is told to end."""
    handler = type("_BoundHandler", (_Handler,), {"sandbox": sandbox})
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    with _Server((LOOPBACK, port), handler) as server:
        sys.stdout.write(f"code sandbox listens on 127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


def _exit(number: int, frame: object) -> None:
    raise SystemExit(0)
