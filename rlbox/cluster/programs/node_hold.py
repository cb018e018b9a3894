"""What is a connection's as long as it lives: who changes clusters here, its folder, what it undoes.

The kernel holds the first two, and lets go of them with the program, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING

from rlbox.cluster.programs import node_engine, node_facts, node_files, node_lives, node_net, node_ray, node_rules
from rlbox.cluster.programs.node_wire import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlbox.cluster.programs.node_blobs import Blobs
    from rlbox.cluster.programs.node_ray import Door
    from rlbox.cluster.programs.node_wire import NodeWire, Row

NAME = "\0rlbox-cluster"
_FOLDER = re.compile("rlbox-[0-9a-f]{16}")
_LOCK = "lock"
_ANSWER_S = 3.0
_BEAT_S = 1.0
_WHOLE_S = 60.0
"""How long what takes lives away may need, which is done whole though nobody waits for it any more."""
_SILENCE_S = 90.0
"""How long nothing is heard of who asks before it counts as gone: a power cut there closes no connection."""


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


class Node:
    """What one connection holds here: the folder of its sockets, names, listeners, and what is undone at its end."""

    def __init__(self, wire: NodeWire) -> None:
        self.wire = wire
        self.folder = self.engine = ""
        self.hold, self.listeners, self.whole = Hold(), node_net.Listeners(), threading.Lock()
        self.undo: dict[str, Callable[[], object]] = {}
        self.heard = time.monotonic()
        self.ends: dict[int, threading.Event] = {}
        self.blobs: Blobs | None = None
        self.door: Door | None = None
        self.pieces: dict[str, str] = {}
        self.lives = node_lives.Carried("", "/", lambda: ([], b""))

    def begin(self, first: Row) -> Row:
        """Make the folder whose sockets the connection forwards, and say who this is."""
        folder = first["folder"]
        make_folder(folder)
        self.folder, self.engine = folder, node_engine.find_socket()
        words = [sys.executable, "-I", "-S", "-c", first["boot"], "rlbox-keeper"]
        self.lives = node_lives.Carried(self.engine, first["disk"], lambda: (words, sys.modules["__main__"]._t))
        os.symlink(self.engine, os.path.join(folder, "engine"))
        threading.Thread(target=self._beat, daemon=True).start()
        return node_facts.machine_facts()

    def _beat(self) -> None:
        while True:
            time.sleep(_BEAT_S)
            if time.monotonic() - self.heard > _SILENCE_S:
                self.end()
                os.kill(os.getpid(), signal.SIGKILL)  # what it holds by then is a row that never comes
            with contextlib.suppress(OSError, ValueError):
                self.wire.say({"beat": time.time()})

    def end(self) -> None:
        """Undo what was begun and not finished, and remove what is only for this connection."""
        self.whole.acquire(timeout=_WHOLE_S)  # whoever comes next is not to meet what is about to end
        for step in list(self.undo.values())[::-1]:
            with contextlib.suppress(Exception):
                step()
        self.undo = {}
        self.listeners.close()
        self.hold.leave()
        if self.blobs is not None:
            self.blobs.close()
        if self.door is not None:
            self.door.close()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


# ---- what is made for a call, and goes with it


def guard(node: Node, row: Row) -> Row:
    """Remember what a call is about to make: it goes unless it says `commit` before it ends."""
    call, disk, path, rules = row["call"], row["disk"], row["path"], row["rules"]

    def step() -> None:
        _remove_sessions(disk, node.lives.end_call(row), inside=not row["here"])
        if path:
            node_files.remove(disk, path)
        if rules:
            node_rules.open_ports(rules)

    node.undo[call] = step
    return {}


def guard_file(node: Node, row: Row) -> Row:
    """Remember a file that goes with this connection, however that ends, unless a job has yet to read it."""

    def step() -> None:
        if not row.get("job") or not node_ray.has_to_read(row["job"]):
            node_files.remove(row["disk"], row["path"])

    node.undo[row["path"]] = step
    return {}


def commit(node: Node, row: Row) -> Row:
    """Let what a call made stay."""
    return {"known": node.undo.pop(row["call"], None) is not None}


def roll_back(node: Node, row: Row) -> Row:
    """Undo a call; it stays known until that is done: where the connection ends meanwhile, its end does it."""
    step = node.undo.get(row["call"])
    if step is not None:
        step()
        node.undo.pop(row["call"], None)
    return {"known": step is not None}


_SESSIONS = "sessions"
"""File of a cluster's folder that names the sessions of containers that were replaced; they go with the cluster."""


def _remove_sessions(disk: str, names: list[str], *, inside: bool) -> int:
    """Remove sessions of Ray, and empty folders that programs in containers made; return how many sessions went."""
    gone = [name for name in names if name.isalnum() and node_files.remove(disk, f"ray/{name}")]
    if inside:
        node_files.remove_empty(disk, "cache")  # where they compile, had they something to
        node_files.remove(disk, "ray/none")  # and the folder of sessions, where one was killed before it had its own
    return len(gone)


def retire(node: Node, row: Row) -> Row:
    """End lives that others are started for; their sessions stay, for who looks why they ended."""
    path = f"{row['path']}/{_SESSIONS}"
    with node.whole:
        names = node.lives.take_down(row["containers"], row["grace"], row["mount"], retire=True)
        known = node_files.read(row["disk"], path).split() + names
        node_files.write(row["disk"], path, "\n".join(known), 0o600, row["owner"])
    return {}


def take_down(node: Node, row: Row) -> Row:
    """End a cluster's lives here, and remove what it has on the disk: its folder, the sessions of its Ray."""
    with node.whole:
        return _taken_down(node, row)


def _taken_down(node: Node, row: Row) -> Row:
    names, gone = node.lives.take_down(row["containers"], row["grace"], row["mount"]), 0
    for path in row["paths"]:
        names += node_files.read(row["disk"], f"{path}/{_SESSIONS}").split()
        gone += node.lives.clear(path)
    folders = [path for path in row["paths"] if node_files.remove(row["disk"], path)]
    gone += _remove_sessions(row["disk"], names, inside=any(map(node_lives.is_container, row["containers"])))
    rules = [name for name in row["rules"] if node_rules.open_ports(name)["gone"]]
    return {"sessions": gone, "folder": bool(folders), "rules": len(rules)}
