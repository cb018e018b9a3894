"""A server on loopback that answers as vast.ai's API does, from recorded rows, and refuses what that would refuse.

Python's own library alone: the journeys carry it to a bare machine.
Source of paths, fields, messages: vastai 1.9.1 (`vastai/api`, `vastai/data`), vast-ai/docs api-reference/openapi/yaml.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parent / "cases"
KEY = "a-key-that-no-message-may-hold"
OPERATORS = {
    "eq": lambda have, want: have == want,
    "gte": lambda have, want: have >= want,
    "lte": lambda have, want: have <= want,
}


class Unanswered(Exception):
    """The platform did what was asked, and says nothing."""


@dataclass
class Platform:
    """The account: offers, instances by id, and what was asked of it; `states` are the next ones of a new instance."""

    offers: list[dict[str, Any]] = field(default_factory=lambda: recorded("offers"))
    instances: dict[int, dict[str, Any]] = field(default_factory=dict)
    states: list[str] = field(default_factory=lambda: ["loading", "running"])
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    refuses: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    on_create: Callable[[dict[str, Any]], None] = lambda row: None
    on_state: Callable[[dict[str, Any], str], None] = lambda row, state: None
    on_destroy: Callable[[dict[str, Any]], None] = lambda row: None
    url: str = ""

    def calls(self, method: str) -> list[Any]:
        """The bodies of the requests of a method."""
        return [body for verb, _, body in self.asked if verb == method]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, body))
        if method in self.refuses:
            return self.refuses[method]
        route = (method, re.sub(r"\d{3,}", "N", path))
        number = int((re.findall(r"\d{3,}", path) or ["0"])[0])
        if route == ("POST", "/api/v0/bundles/"):
            return 200, {"offers": self._search(body)}
        if route == ("PUT", "/api/v0/asks/N/"):
            return self._create(number, body)
        if route == ("GET", "/api/v1/instances/"):
            return 200, {"instances": list(self.instances.values()), "next_token": None}
        if route == ("GET", "/api/v0/instances/N/"):
            return 200, {"instances": self._next(number)}
        if route == ("PUT", "/api/v0/instances/N/"):
            return self._set(number, body["state"])
        if route == ("DELETE", "/api/v0/instances/N/"):
            row = self.instances.pop(number, None)
            if row:
                self.on_destroy(row)
            return (200, {"success": bool(row)})
        raise AssertionError(f"the platform has no such call: {route}")

    def _search(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        rows = [row for row in self.offers if all(self._fits(row, *one) for one in query.items())]
        return sorted(rows, key=lambda row: row["dph_total"])[: query["limit"]]

    @staticmethod
    def _fits(row: dict[str, Any], name: str, asked: Any) -> bool:
        if not isinstance(asked, dict):
            return True
        assert name in row, f"the platform has no field {name}"
        have = row[name]
        return all(
            OPERATORS[word](have, type(have)(want) if isinstance(want, str) else want) for word, want in asked.items()
        )

    def _create(self, number: int, body: dict[str, Any]) -> tuple[int, Any]:
        offer = next((row for row in self.offers if row["id"] == number), None)
        if offer is None:
            message = f"error 404/3603: no_such_ask Instance type by id {number} is not available."
            return 404, {"success": False, "error": "invalid_args", "msg": message, "ask_id": number}
        assert len(body["onstart"]) <= 4048
        assert body["disk"] >= 8
        made = 10_000_000 + number
        row = {"id": made, "label": body["label"], "image_uuid": body["image"], "actual_status": None}
        self.instances[made] = {**recorded("instance"), **row, "onstart": body["onstart"]}
        self.on_create(self.instances[made])
        return 200, {"success": True, "new_contract": made}

    def _set(self, number: int, state: str) -> tuple[int, Any]:
        row = self.instances.get(number)
        if row is None:
            return 404, {"success": False, "error": "no_such_instance", "msg": f"no instance {number}"}
        row |= {"intended_status": state, "actual_status": "exited" if state == "stopped" else "loading"}
        self.states = [] if state == "stopped" else ["exited", "loading", "running"]
        self.on_state(row, state)
        return 200, {"success": True}

    def _next(self, number: int) -> dict[str, Any] | None:
        if number in self.instances and self.states:
            self.instances[number]["actual_status"] = self.states.pop(0)
        return self.instances.get(number)


def recorded(name: str) -> Any:
    """A recorded answer."""
    return json.loads((CASES / f"vast/{name}.json").read_text("utf-8"))


@contextmanager
def serving(platform: Platform) -> Iterator[Platform]:
    """Serve an account on loopback as long as the block lasts."""

    class Api(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            assert self.headers["Authorization"] == f"Bearer {KEY}"
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, body = platform.answer(self.command, self.path.partition("?")[0], json.loads(data or b"null"))
            except Unanswered:
                self.close_connection = True
                return
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, *words: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    platform.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield platform
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
