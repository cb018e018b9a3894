"""HTTP as a node's program speaks it: to its engine's socket, and to another node that serves parts of an image."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote

from rlbox.cluster.programs.node_wire import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlbox.cluster.programs.node_wire import Row

_MOST = 1 << 24


def quoted(text: str, safe: str = "/") -> str:
    """Return a word as it stands in a path or a query."""
    return quote(text, safe=safe)


class _Local(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask_local(path: str, method: str, what: str, timeout: float) -> tuple[int, bytes, Row]:
    """Return status, body and headers of the answer that comes from a socket; `OSError` where none does."""
    connection = _Local(path, timeout)
    try:
        connection.request(method, what)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): text for name, text in answer.getheaders()}
    except http.client.HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        connection.close()


def lines_local(path: str, what: str, ended: threading.Event) -> Iterator[bytes]:
    """Yield the lines of an answer that goes on, until `ended` is set or it breaks off; `OSError` where none comes."""
    connection = _Local(path, None)
    with contextlib.closing(connection):
        try:
            connection.request("GET", what)
            answer = connection.getresponse()
            threading.Thread(target=_cut_at, args=(ended, connection.sock), daemon=True).start()
            yield from answer if answer.status == 200 else ()
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(str(error) or type(error).__name__) from error


def _cut_at(ended: threading.Event, one: socket.socket) -> None:
    ended.wait()
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def ask_loopback(port: int, method: str, what: str, headers: Row, body: object, timeout: float) -> tuple[int, str]:
    """Return status and text of the answer that comes from a port of this node's loopback; no proxy is asked."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, what, body or None, headers)  # type: ignore[arg-type]
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST).decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        connection.close()


def blocks_from(address: str, port: int, what: str, at: int, timeout: float) -> Iterator[bytes]:
    """Yield a file of another node from a place on; fewer bytes where it ends, or does not answer as it should."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", what, headers={"Range": f"bytes={at}-"})
        answer = connection.getresponse()
        block = answer.read(BLOCK) if answer.status == 206 else b""
        while block:
            yield block
            block = answer.read(BLOCK)
