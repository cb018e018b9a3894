"""Long engine calls: a stream of bytes into the engine, or out of it (push, save, load).

A local engine is spoken to over its socket with the standard library; docker-py, whose import takes 0.3 s, does the
rest.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any, BinaryIO, Protocol

from rlbox.engine.act.address import engine_address, engine_unreachable
from rlbox.errors import EngineError

CHUNK = 1 << 20
_SILENCE_S = 1800.0  # unpacking one layer of several gigabytes says nothing meanwhile


class _Readable(Protocol):
    def read(self, amount: int, /) -> bytes: ...


class EngineAnswer:
    """An answer of the engine, read bit by bit."""

    def __init__(self, source: _Readable) -> None:
        self._source = source

    def read(self, amount: int = CHUNK) -> bytes:
        """Return up to `amount` bytes; none at the end. `EngineError` when the engine breaks off."""
        try:
            return self._source.read(amount)
        except (OSError, HTTPException) as error:
            raise _broken_off(error) from error

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of the answer, one a line, as they come."""
        rest = b""
        while data := self._read_some():
            *lines, rest = (rest + data).split(b"\n")
            yield from (json.loads(line) for line in lines if line.strip())
        if rest.strip():
            yield json.loads(rest)

    def _read_some(self) -> bytes:
        read1 = getattr(self._source, "read1", self._source.read)
        try:
            return bytes(read1(1 << 16))
        except (OSError, HTTPException) as error:
            raise _broken_off(error) from error


@contextmanager
def engine_call(
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterable[bytes] | BinaryIO = b"",
    expect: tuple[int, ...] = (200, 201, 204),
) -> Iterator[EngineAnswer]:
    """Ask the engine and yield its answer.

    Raises
    ------
    EngineError
        It does not answer, or refuses: its own words are quoted.
    """
    address = engine_address()
    opened = _over_socket if address.startswith("unix://") else _by_docker_py
    with ExitStack() as stack:
        try:
            status, source = stack.enter_context(opened(address, method, path, dict(headers or {}), body))
        except (OSError, HTTPException) as error:
            raise engine_unreachable(address, error) from error
        answer = EngineAnswer(source)
        if status not in expect:
            raise EngineError(f"the engine refused: {_words(answer.read(4096))}", where=f"{method} {path}")
        yield answer


def engine_says(path: str) -> dict[str, Any]:
    """Return the engine's answer to a GET, one JSON object."""
    found: dict[str, Any] = _ask(path)
    return found


def engine_lists(path: str) -> list[dict[str, Any]]:
    """Return the engine's answer to a GET, a list of JSON objects."""
    found: list[dict[str, Any]] = _ask(path)
    return found


def _ask(path: str) -> Any:
    with engine_call("GET", path) as answer:
        return json.loads(b"".join(iter(answer.read, b"")))


class _SocketConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=_SILENCE_S, blocksize=CHUNK)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@contextmanager
def _over_socket(
    address: str, method: str, path: str, headers: dict[str, str], body: bytes | Iterable[bytes] | BinaryIO
) -> Iterator[tuple[int, _Readable]]:
    connection = _SocketConnection(address.removeprefix("unix://"))
    try:
        chunked = not isinstance(body, bytes)
        more = {"Transfer-Encoding": "chunked"} if chunked else {}
        with contextlib.suppress(BrokenPipeError):  # an engine that refuses early says why in its answer
            connection.request(method, path, body=body, headers=headers | more, encode_chunked=chunked)
        response = connection.getresponse()
        yield response.status, response
    finally:
        connection.close()


@contextmanager
def _by_docker_py(
    address: str, method: str, path: str, headers: dict[str, str], body: bytes | Iterable[bytes] | BinaryIO
) -> Iterator[tuple[int, _Readable]]:
    import docker
    from docker.errors import DockerException

    try:
        client = docker.APIClient(base_url=address, timeout=int(_SILENCE_S))
    except DockerException as error:
        raise engine_unreachable(address, error) from error
    with client.request(method, client.base_url + path, headers=headers, data=body, stream=True) as response:
        yield response.status_code, response.raw


def _broken_off(error: Exception) -> EngineError:
    return EngineError(
        f"the engine broke off: {str(error) or type(error).__name__}",
        where=engine_address(),
        next_step="`docker info` shows whether it still runs; then repeat",
    )


def _words(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip()
