"""Ray as a node's program reaches it: its jobs API, with the token that lies here, its logs, and its dashboard."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import socket
import stat
import threading
import time
from typing import TYPE_CHECKING

from rlbox.cluster.programs import node_files
from rlbox.cluster.programs.node_http import ask_loopback
from rlbox.cluster.programs.node_wire import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlbox.cluster.programs.node_wire import Row

_ENDED = re.compile(rb"(\w+) \[exit code=(-?\w+)")
"""How `ray start --block` tells which of its parts has ended. Source: ray/scripts/scripts.py of 2.43 and 2.60."""
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_ANSWER_S, _UPLOAD_S = 30.0, 300.0
_PAUSE_S = 0.3
_BLOCK = 1 << 16


def ask_ray(row: Row) -> Row:
    """Ask the jobs API of the head here; the body is the text of `body`, or the file `file` of the data disk."""
    headers = {"Content-Type": row.get("type", "application/json"), "User-Agent": "rlbox"}  # 2.43 fails without one
    token = node_files.read(row["disk"], row["token"]).strip() if row.get("token") else ""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if not row.get("file"):
        status, text = ask_loopback(
            row["port"], row["method"], row["path"], headers, row.get("body", "").encode(), _ANSWER_S
        )
        return {"status": status, "text": text}
    *parts, name = row["file"].split("/")
    with node_files.Beneath(row["disk"], parts) as folder:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.handle)
    with os.fdopen(handle, "rb") as file:
        headers["Content-Length"] = str(os.fstat(handle).st_size)
        status, text = ask_loopback(row["port"], row["method"], row["path"], headers, file, _UPLOAD_S)
    return {"status": status, "text": text}


def has_to_read(row: Row) -> bool:
    """Whether Ray knows the job that `ask_ray` is to ask for, and has not ended: then it will read what it is given."""
    try:
        answer = ask_ray(row)
        return answer["status"] == 200 and from_json(answer["text"].encode())["status"] in ("PENDING", "RUNNING")
    except (OSError, ValueError, LookupError, TypeError):
        return False


def ended_part(text: bytes) -> str:
    """Return which part of Ray ended first, with its exit code, as Ray's own start tells; empty where it does not."""
    text = _COLOURS.sub(b"", text)
    found = _ENDED.search(text, max(0, text.rfind(b"exited unexpectedly")))
    return b" ".join(found.groups()).decode() if found else ""


def write_piece(row: Row, blocks: Iterable[bytes]) -> None:
    """Write the next bytes of a file of the cluster's folder, for its owner alone."""
    *parts, name = row["file"].split("/")
    with node_files.Beneath(row["disk"], parts) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(name, flags, 0o600, dir_fd=folder.handle)
    with os.fdopen(handle, "ab") as file:
        for block in blocks:
            file.write(block)


# ---- logs


class RayLogs:
    """The logs of a session of Ray's as they grow, where `folder` tells them to be; no link of a job's is followed."""

    def __init__(self, folder: Callable[[], tuple[str, list[str]]], names: list[str], most: int) -> None:
        self._folder, self._names, self._most = folder, names, most
        self._read: dict[str, int] = {}

    def new(self, whole: bool) -> list[Row]:
        """Return what each log gained: `file`, `text`, `at` when it was last written; `whole`: with its last line."""
        top, parts = self._folder()
        found = []
        for name in node_files.names(top, "/".join(parts)):
            if any(fnmatch.fnmatch(name, pattern) for pattern in self._names):
                with contextlib.suppress(OSError):
                    found += self._gained(top, parts, name, whole)
        return found

    def _gained(self, top: str, parts: list[str], name: str, whole: bool) -> list[Row]:
        with node_files.Beneath(top, parts) as folder:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                return []
            at = self._read.get(name, max(0, about.st_size - self._most))
            file.seek(at)
            data = file.read(self._most)
        end = len(data) if whole or len(data) == self._most else data.rfind(b"\n") + 1
        begin = data.find(b"\n") + 1 if at and name not in self._read else 0  # a line whose beginning is left out
        self._read[name] = at + end
        text = data[begin:end].decode("utf-8", "replace")
        return [{"file": name, "text": text, "at": about.st_mtime}] if text else []


def tell_logs(
    row: Row, folder: Callable[[], tuple[str, list[str]]], part: Callable[[Row], None], ended: threading.Event
) -> Row:
    """Tell what the logs hold, and with `follow` what they gain, until told to end; `now` is this node's clock."""
    logs = RayLogs(folder, row["names"], row["most"])
    first, last = True, not row["follow"]
    while True:
        rows = logs.new(last)
        if rows or first:
            part({"first": first, "now": time.time(), "logs": rows})
        if last:
            return {}
        first, last = False, ended.wait(_PAUSE_S)


# ---- dashboard


class Door:
    """A socket of the connection's own folder that leads to a port of this node's loopback."""

    def __init__(self, path: str, port: int) -> None:
        self._port = port
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        os.chmod(path, 0o600)
        self._socket.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            try:
                other = socket.create_connection(("127.0.0.1", self._port), 5)
                other.settimeout(None)
            except OSError:
                one.close()
                continue
            for pair in ((one, other), (other, one)):
                threading.Thread(target=_pump, args=pair, daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _pump(source: socket.socket, goal: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = source.recv(_BLOCK)
            if not data:
                break
            goal.sendall(data)
    for one, how in ((goal, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            one.shutdown(how)
