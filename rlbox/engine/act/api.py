"""The few engine calls that must be quick: one HTTP request over the engine's socket, nothing imported.

docker-py (in `engine/act/docker.py`) does the rest; its import alone costs more than these calls.
"""

from __future__ import annotations

import json
import re
import socket
from functools import cache
from typing import Any

from rlbox.engine.act.address import engine_address, engine_unreachable
from rlbox.errors import EngineError

_TIMEOUT_S = 20.0
_SERVER = re.compile(rb"^Server: Docker/(\d+(?:\.\d+)*)", re.M | re.I)


def find_image(tag: str) -> dict[str, Any] | None:
    """Return the engine's description of an image (`Id`, `Config.Labels`, `Size`, …), or None when it has none.

    Raises
    ------
    EngineError
        No engine answers, or this user may not speak to it.
    """
    address = engine_address()
    if address.startswith("unix://"):
        status, body = _get(address.removeprefix("unix://"), f"/images/{tag}/json")
        if status == 404:
            return None
        if status != 200:
            raise EngineError(f"the engine answered {status} when asked about {tag}: {body[:200]!r}", where=address)
        try:
            found: dict[str, Any] = json.loads(body)
        except ValueError as error:
            raise EngineError(f"this is no Docker engine: it answered {body[:200]!r}", where=address) from error
        return found
    from rlbox.engine.act.docker import DockerEngine

    return DockerEngine.connect().find_image(tag)


def engine_version() -> tuple[int, ...]:
    """Return the engine's version, as far as it is numbers: (26, 1, 5).

    Docker says it with every answer; `/version`, which others are asked for, takes it 0.2 s.
    """
    return _version_at(engine_address())


@cache
def _version_at(address: str) -> tuple[int, ...]:
    if address.startswith("unix://"):
        path = address.removeprefix("unix://")
        if found := _SERVER.search(_ask(path, "/_ping").partition(b"\r\n\r\n")[0]):
            return tuple(int(part) for part in found[1].split(b"."))
        _, body = _get(path, "/version")
        try:
            told = json.loads(body)
        except ValueError as error:
            raise EngineError(f"this is no Docker engine: it answered {body[:200]!r}", where=address) from error
    else:
        from rlbox.engine.act.docker import DockerEngine

        told = DockerEngine.connect().version()
    numbers = str(told.get("Version", "")).partition("+")[0].split(".")
    return tuple(int(part) for part in numbers if part.isdigit())


def engine_info() -> dict[str, Any]:
    """Return what the engine says of itself and its machine (`/info`); `EngineError` when none answers."""
    address = engine_address()
    if not address.startswith("unix://"):
        from rlbox.engine.act.docker import DockerEngine

        return DockerEngine.connect().info()
    _, body = _get(address.removeprefix("unix://"), "/info")
    try:
        told: dict[str, Any] = json.loads(body)
    except ValueError as error:
        raise EngineError(f"this is no Docker engine: it answered {body[:200]!r}", where=address) from error
    return told


def _get(path: str, url: str) -> tuple[int, bytes]:
    """Return status and body of a GET over a Unix socket."""
    answer = _ask(path, url)
    parsed = parse_answer(answer)
    if parsed is None:
        raise EngineError(f"this is no Docker engine: it answered {answer[:200]!r}", where=f"unix://{path}")
    return parsed


def _ask(path: str, url: str) -> bytes:
    """Return the whole answer to a GET over a Unix socket.

    HTTP/1.0 is spoken, so that the answer ends with the connection; http.client costs more to import than this takes.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(f"GET {url} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except OSError as error:
        raise engine_unreachable(f"unix://{path}", error) from error


def parse_answer(answer: bytes) -> tuple[int, bytes] | None:
    """Return status and body of an HTTP answer that was read to its end, or None when it is none, or is cut short."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    version, _, code = status.partition(b" ")
    length = fields.get(b"content-length", b"%d" % len(body))
    if not version.startswith(b"HTTP/1.") or not code[:3].isdigit() or b"transfer-encoding" in fields:
        return None
    return (int(code[:3]), body) if length == b"%d" % len(body) else None
