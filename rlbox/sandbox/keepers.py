"""Keepers, seen from themselves: a process that has loaded all they need makes one after another by forking.

A keeper is told on its line first what it is for (a line of JSON), then a plan, and answers with what came of it; one
that is ready in advance takes more plans, one after another. It ends when its line closes, and with who made it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from rlbox.foreign import parse_json
from rlbox.sandbox import kernel
from rlbox.sandbox.carry import carry_out
from rlbox.sandbox.keeper import keep
from rlbox.sandbox.ready import ReadyPython


def make_keepers(control: socket.socket) -> None:
    """Make a keeper of each line that comes over `control`, until it closes; bury the one whose id comes instead.

    Either is answered with the keeper's id, when it is done.
    """
    gc.freeze()  # keepers share what is loaded now
    ours = os.getpid()
    while True:
        word, fds, _, _ = socket.recv_fds(control, 100, 1)
        if not word:
            return
        if fds:
            pid = os.fork()
            if not pid:
                _be_keeper(fds[0], control, ours)
            os.close(fds[0])
        else:
            pid = int(word)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        control.send(b"%d" % pid)


def _be_keeper(fd: int, control: socket.socket, maker: int) -> None:
    """Serve one line, and end."""
    try:
        kernel.die_with_parent()
        if os.getppid() == maker:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, control.detach())
            os.close(nothing)
            with socket.socket(fileno=fd) as line:
                _serve(line)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)  # it is a copy of who makes keepers: it must end here


def _serve(line: socket.socket) -> None:
    with line.makefile("rb") as stream:
        settings = parse_json(stream.readline())
        if not settings["ready"]:
            if plan := stream.readline():
                _say(line, keep({**settings, **parse_json(plan)}, line.fileno()))
            return
        try:
            ready = ReadyPython(settings)
        except OSError as error:
            if stream.readline():
                _say(line, {"limit": "unready", "message": str(error)})
            return
        try:
            while plan := stream.readline():
                _say(line, carry_out(ready, parse_json(plan), line.fileno()) | {"ends": ready.ended})
        finally:
            ready.close()


def _say(line: socket.socket, told: Mapping[str, Any]) -> None:
    with contextlib.suppress(ConnectionError):
        line.sendall(json.dumps(told).encode() + b"\n")
