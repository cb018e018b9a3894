"""Who changes clusters on a node: one at a time, held by a name in the kernel that goes with its holder."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

from rlbox.cluster.act.programs.node_wire import from_json, to_json

if TYPE_CHECKING:
    from rlbox.cluster.act.programs.node_wire import Row

NAME = "\0rlbox-cluster"
_ANSWER_S = 3.0


class Hold:
    """A name in the abstract namespace of the node's network; who asks there is told who holds it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def take(self, who: Row) -> Row:
        """Return `held` true when it is ours now; else what the holder says of itself."""
        if self._socket is not None:
            return {"held": True}
        one = socket.socket(socket.AF_UNIX)
        try:
            one.bind(NAME)
        except OSError:
            one.close()
            return {"held": False, "holder": _holder()}
        one.listen(16)
        self._socket = one
        threading.Thread(target=_tell, args=(one, to_json(who).encode()), daemon=True).start()
        return {"held": True}

    def leave(self) -> None:
        """Let go of it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None


def _tell(one: socket.socket, words: bytes) -> None:
    while True:
        try:
            caller, _ = one.accept()
        except OSError:
            return
        with caller, contextlib.suppress(OSError):
            caller.sendall(words)


def _holder() -> Row:
    """Return what the holder says of itself, and what the kernel does: its user and process."""
    found: Row = {}
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(_ANSWER_S)
            one.connect(NAME)
            pid, uid, _ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            said = from_json(one.recv(4096))
            found = said if isinstance(said, dict) else {}
            found.update(pid=pid, uid=uid)
    except (OSError, ValueError):
        found["gone"] = True
    return found


def own_network() -> str:
    """Return what is the same for two names of one host, and differs between two: its start, and its network."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
