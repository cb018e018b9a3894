"""Keepers, seen from the server: the process that makes them, and the line to each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.config.project import PACKAGE
from rlbox.foreign import parse_json
from rlbox.system.command import DEVNULL, start_command, wait_for_exit
from rlbox.values import Command

_END_S = 20  # for a keeper to end what it keeps
_START_S = 60.0


@dataclass(eq=False)
class WorkerHandle:
    """One keeper; `left` is how many more plans it takes, `scratch` and `group` are what it has."""

    pid: int
    line: socket.socket
    scratch: Path
    group: str
    left: int
    broken: bool = False

    def run_or_kill(self, plan: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        """Give it a plan and return what it tells; when it does not in time it is killed. `left` counts down."""
        self.left -= 1
        try:
            self.line.settimeout(wait_s)
            self.line.sendall(json.dumps(plan).encode() + b"\n")
            found: dict[str, Any] = parse_json(self._read_line())
        except (OSError, ValueError) as error:
            self.kill()
            return {"limit": "start", "message": f"the process that keeps programs ended: {error or 'killed'}"}
        if found.get("ends") or found["limit"] == "unready":
            self.left = 0
        return found

    def waits(self) -> bool:
        """Return whether it is there: one that has nothing to say says nothing."""
        return not select.select([self.line], [], [], 0)[0]

    def _read_line(self) -> bytes:
        found = bytearray()
        while not found.endswith(b"\n"):
            part = self.line.recv(1 << 16)
            if not part:
                raise OSError("killed")
            found += part
        return bytes(found)

    def close(self) -> None:
        """Have it end what it keeps, and itself."""
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)

    def wait_for_exit(self) -> None:
        """Wait until it has, or make it."""
        try:
            self.line.settimeout(_END_S)
            while self.line.recv(1 << 16):
                pass
        except OSError:
            self.kill()

    def kill(self) -> None:
        """End it, and so all that it keeps; whoever made it has not buried it yet, so that the id is its own."""
        self.left, self.broken = 0, True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class WorkerZygote:
    """Makes keepers by forking one process that has loaded all they need; it is started again when it was killed.

    Raises
    ------
    OSError
        From every call: there is none to be had.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(_START_S)
        command = Command(
            argv=(sys.executable, "-m", "rlbox.sandbox", "keepers"),
            env={"PATH": os.defpath, "PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
        )
        with theirs:
            self._process = start_command(command, environ={}, stdin=theirs.fileno(), stdout=DEVNULL, stderr=DEVNULL)

    @property
    def pid(self) -> int:
        """Return the id of the process that makes them."""
        return self._process.pid

    def keeper(self, settings: Mapping[str, Any], left: int) -> WorkerHandle:
        """Return a new keeper, which may still be at getting ready."""
        scratch = Path(settings["scratch"])
        scratch.mkdir(mode=0o700)
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._make(theirs)
        keeper = WorkerHandle(pid=pid, line=ours, scratch=scratch, group=settings["group"], left=left)
        with contextlib.suppress(OSError):  # it was killed: whoever asks it hears that
            ours.sendall(json.dumps(settings).encode() + b"\n")
        return keeper

    def _make(self, line: socket.socket) -> int:
        with self.lock:
            for again in (True, False):
                try:
                    socket.send_fds(self._line, [b"keeper"], [line.fileno()])
                    if told := self._line.recv(100):
                        return int(told)
                    raise OSError("it has ended")
                except OSError as error:
                    if not again:
                        raise OSError(f"the process that makes keepers does not answer: {error}") from error
                    self._end()
                    self._start()
        raise AssertionError

    def bury(self, keeper: WorkerHandle) -> None:
        """Wait for the end of a keeper that was closed or killed."""
        keeper.wait_for_exit()
        keeper.line.close()
        with contextlib.suppress(OSError), self.lock:  # with its maker it has ended, too
            self._line.send(b"%d" % keeper.pid)
            self._line.recv(100)

    def close(self) -> None:
        """End it, with all keepers."""
        with self.lock:
            self._end()

    def _end(self) -> None:
        self._line.close()
        if wait_for_exit(self._process, _END_S) is None:
            self._process.kill()
            self._process.wait()
