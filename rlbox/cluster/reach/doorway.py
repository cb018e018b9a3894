"""A port of this machine's loopback that leads to a node's: what a browser is given, and nobody's page but it."""

from __future__ import annotations

import contextlib
import socket
import threading

from rlbox.system.ports import LOOPBACK

_HEAD = 1 << 16
_BLOCK = 1 << 16
_PATIENCE_S = 30.0
_REFUSED = b"HTTP/1.1 421 Misdirected Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Doorway:
    """Listens on 127.0.0.1 until it is closed, and passes each request on to the socket `door`.

    A request for another name than this machine's (DNS rebinding), or one that a page of somebody else's had a browser
    send, is refused: an older Ray would carry it out. Each connection carries one request, so that all are looked at.

    Raises
    ------
    OSError
        The port is taken.
    """

    def __init__(self, door: str, port: int = 0) -> None:
        self._door = door
        self._socket = socket.create_server((LOOPBACK, port))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="dashboard", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            one.settimeout(_PATIENCE_S)
            head, rest = _read_head(one)
            passed = admitted(head, self.port)
            if not passed:
                one.sendall(_REFUSED)
                return
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(self._door)
                other.sendall(passed + rest)
                one.settimeout(None)
                back = threading.Thread(target=_pump, args=(other, one), daemon=True)
                back.start()
                _pump(one, other)
                back.join()

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _read_head(one: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data and len(data) < _HEAD:
        block = one.recv(_BLOCK)
        if not block:
            return b"", b""
        data += block
    head, end, rest = data.partition(b"\r\n\r\n")
    return (head, rest) if end else (b"", b"")


def admitted(head: bytes, port: int) -> bytes:
    """Return the head of a request as it is passed on, empty where it is refused."""
    first, *rows = head.split(b"\r\n")
    fields = [(row.partition(b":")[0].strip().lower(), row.partition(b":")[2].strip()) for row in rows]
    hosts = [f"{name}:{port}".encode() for name in (LOOPBACK, "localhost")]
    named = [text for name, text in fields if name == b"host"]
    origins = [text for name, text in fields if name == b"origin"]
    if (
        len(named) != 1
        or named[0] not in hosts
        or any(text not in [b"http://" + one for one in hosts] for text in origins)
    ):
        return b""
    if any(name == b"upgrade" for name, _ in fields):
        return head + b"\r\n\r\n"
    kept = [row for row, (name, _) in zip(rows, fields, strict=True) if name not in (b"connection", b"keep-alive")]
    return b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n"


def _pump(source: socket.socket, goal: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_BLOCK):
            goal.sendall(data)
    for one, how in ((goal, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            one.shutdown(how)
