"""The dashboard of a cluster on this machine's loopback, until Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.context import open_context
from rlbox.cluster.jobs import require_head
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.ray_runtime import TOKEN_FILE
from rlbox.errors import NodeError
from rlbox.i18n import _
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
                one, __ = self._socket.accept()
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
    if any(name == b"upgrade" for name, __ in fields):
        return head + b"\r\n\r\n"
    kept = [row for row, (name, __) in zip(rows, fields, strict=True) if name not in (b"connection", b"keep-alive")]
    return b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n"


def _pump(source: socket.socket, goal: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_BLOCK):
            goal.sendall(data)
    for one, how in ((goal, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            one.shutdown(how)


_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class OpenDashboard:
    """Where it is, and which file of the head has the token that it asks for, empty where it asks for none."""

    url: str
    token_file: str
    head: NodeConnection

    def wait(self) -> None:
        """Wait until the connection to the head breaks; `NodeError` then. Ctrl-C ends it before."""
        while not self.head.lost:
            time.sleep(_POLL_S)
        raise self.head.gone()


@contextmanager
def dashboard(app: App, options: ClusterOptions, port: int) -> Iterator[OpenDashboard]:
    """Yield a cluster's dashboard, reached from here while the block runs.

    Raises
    ------
    NodeError
        There is no such cluster, its head does not answer, or the port is taken here.
    """
    with open_context(app, options) as context:
        standing = context.require_standing(context.survey())
        plan, head = standing.plan, require_head(context, standing)
        door = head.door(plan.ports.of("dashboard"))
        try:
            doorway = Doorway(door, port)
        except OSError as error:
            raise NodeError(
                _("port {port} is taken on this machine").format(port=port),
                next_step=_("--port N, or without it any that is free"),
            ) from error
        file = f"{head.options.data}/{plan.folder(head.name)}/{TOKEN_FILE}" if plan.closed == "token" else ""
        try:
            yield OpenDashboard(url=f"http://127.0.0.1:{doorway.port}", token_file=file, head=head)
        finally:
            doorway.close()
