"""HTTP reward server: computes the reward of answers from the cards and chips in each request.

`POST /score` takes {"items": [{"hole", "board", "pot", "to_call", "stack", "answer"}, ...]} and returns {"scores":
[{"reward", "action", "legal", "best", "equity", "values"}, ...]} in the same order, 400 with {"error"} if it is bad.
`GET /health` returns 200. Only loopback is served. Nothing is looked up: other keys of an item are ignored.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from smoke import program
from smoke.decision import Spot, score

HOST = "127.0.0.1"
LARGEST_BODY = 16 << 20  # bytes; a batch of 1000 answers is about 200 kB


def score_items(body: bytes) -> dict[str, Any]:
    """Return the answer to `POST /score`. Raises ValueError naming the item that is wrong."""
    request = json.loads(body)
    items = request.get("items") if isinstance(request, dict) else None
    if not isinstance(items, list):
        raise ValueError('the body must be {"items": [...]}')
    scores = []
    for place, item in enumerate(items):
        try:
            spot, answer = Spot.from_json(item), item.get("answer")
        except ValueError as error:
            raise ValueError(f"items[{place}]: {error}") from error
        if not isinstance(answer, str):
            raise ValueError(f"items[{place}]: answer must be a string")
        scores.append(asdict(score(spot, answer)))
    return {"scores": scores}


class Handler(BaseHTTPRequestHandler):
    """One connection; kept alive between requests."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # s without a byte

    def do_GET(self) -> None:
        """Answer the probe."""
        if self.path == "/health":
            self._reply(200, {"status": "ready"})
        else:
            self._reply(404, {"error": f"no such path: {self.path}"})

    def do_POST(self) -> None:
        """Score a batch."""
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > LARGEST_BODY:
            self.close_connection = True
            self._reply(413, {"error": f"Content-Length must be 0 to {LARGEST_BODY}"})
            return
        body = self.rfile.read(int(size))
        if self.path != "/score":
            self._reply(404, {"error": f"no such path: {self.path}"})
            return
        try:
            self._reply(200, score_items(body))
        except ValueError as error:
            self._reply(400, {"error": str(error)})

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def serve(port: int) -> ThreadingHTTPServer:
    """Bind and return the server; port 0 takes a free one. Raises JobError when the port is taken."""
    ThreadingHTTPServer.daemon_threads = True
    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        message = f"cannot listen on {HOST}:{port}: {error.strerror}; free the port or pass another --port"
        raise program.JobError(message) from error


def main() -> None:
    """Parse the command line and serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="smoke.reward", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    server = serve(parser.parse_args().port)
    print(f"reward server ready on http://{HOST}:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    program.run("smoke.reward", main)
