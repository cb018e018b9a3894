"""The sandbox's own processes: `python -m rlbox.sandbox serve` answers over HTTP, `probe` says how strong it is.

`worker` is what the server starts to run programs. The server listens on loopback: SandboxFusion's POST /run_code and
GET /v1/ping, and POST /check of our own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import signal
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlbox.foreign import parse_digits, parse_untrusted_json
from rlbox.sandbox.plan import LAYERS
from rlbox.sandbox.request import RequestLimits, parse_program_request
from rlbox.sandbox.response import build_error_response
from rlbox.sandbox.sandbox import Sandbox
from rlbox.sandbox.worker import serve_plans
from rlbox.system.ports import LOOPBACK

_MAX_REQUEST = 64 << 20
"""Bytes."""
_IDLE_S = 300
_HAS_TESTS = {"/run_code": False, "/check": True}


def _parse_arguments(argv: list[str]) -> argparse.Namespace:
    limits = RequestLimits()
    parser = argparse.ArgumentParser(prog="python -m rlbox.sandbox", description=__doc__)
    parser.add_argument("command", choices=("serve", "probe", "worker"))
    parser.add_argument("--port", type=int, default=8080, help="on loopback; 0: any")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the programs")
    parser.add_argument("--cpu-s", type=float, default=limits.cpu_s, help="processor time of a request, at most")
    parser.add_argument("--memory-mb", type=int, default=limits.memory_mb)
    parser.add_argument("--scratch", default="", help="where the programs' folders are made")
    parser.add_argument("--layers", default=",".join(LAYERS), help="layers of isolation that are tried")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run a command; exit status 1: programs have no wall here."""
    args = _parse_arguments(argv)
    if args.command == "worker":
        serve_plans(socket.socket(fileno=0))
        return 0
    limits = RequestLimits(cpu_s=args.cpu_s, compile_s=args.cpu_s, memory_mb=args.memory_mb)
    sandbox = Sandbox(args.python, limits, scratch=args.scratch, layers=args.layers.split(","))
    with contextlib.closing(sandbox):
        report = sandbox.probe_isolation_layers()
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        if report["wrong"]:
            return 1
        if args.command == "serve":
            _serve(sandbox, args.port)
    return 0


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
        size = parse_digits(self.headers.get("Content-Length", ""))
        if size is None or size > _MAX_REQUEST:
            self.close_connection = True
            self._send(413, {"detail": f"a request has a length of at most {_MAX_REQUEST} bytes"})
            return
        content = self.rfile.read(size)
        if self.path not in _HAS_TESTS:
            self._send(404, {"detail": "Not Found"})
            return
        try:
            document = parse_untrusted_json(content, allow_surrogates=True)
            request = parse_program_request(document, self.sandbox.limits, has_tests=_HAS_TESTS[self.path])
        except ValueError as error:
            self._send(422, {"detail": f"no request: {error}"})
            return
        with self.sandbox.slots:
            try:
                response = build_error_response("who asked is gone")
                if self._is_awaited():
                    response = self.sandbox.run(request)
            except Exception as error:  # a failure of one request must not end the others
                response = build_error_response(f"{type(error).__name__}: {error}")
        self._send(200, response)

    def _is_awaited(self) -> bool:
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
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing when a client goes away in the middle."""


def _serve(sandbox: Sandbox, port: int) -> None:
    _Handler.sandbox = sandbox
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    with _Server((LOOPBACK, port), _Handler) as server:
        sys.stdout.write(f"code sandbox listens on {LOOPBACK}:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
