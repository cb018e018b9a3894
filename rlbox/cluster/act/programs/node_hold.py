"""What is a connection's as long as it lives: who changes clusters on a node, and the folder of its sockets.

The kernel holds either, and lets go of it with the program, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import struct
import threading
from typing import TYPE_CHECKING

from rlbox.cluster.act.programs.node_procs import boot, born
from rlbox.cluster.act.programs.node_wire import from_json, to_json

if TYPE_CHECKING:
    from rlbox.cluster.act.programs.node_wire import Row

NAME = "\0rlbox-cluster"
_FOLDER = re.compile("rlbox-[0-9a-f]{16}")
_LOCK = "lock"
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
    """Return what is the same for two names of one host, and differs between two: its start, and its network.

    A container that is started anew is another: its network may have the number that the one before had.
    """
    return f"{boot()}/{os.stat('/proc/self/ns/net').st_ino}/{born(1)}"


def make_folder(path: str) -> None:
    """Make the folder of a connection; remove those beside it that a power cut left, whose program is gone."""
    above = os.path.dirname(path)
    for name in filter(_FOLDER.fullmatch, os.listdir(above)):
        with contextlib.suppress(OSError):
            _remove_left(os.path.join(above, name))
    os.mkdir(path, 0o700)
    _locked(os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _remove_left(path: str) -> None:
    if os.lstat(path).st_uid != os.getuid() or os.path.islink(path):
        return
    handle = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _locked(handle)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)


def _locked(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
