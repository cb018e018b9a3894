"""The process above Ray on a node without an engine: what an engine does for a container's first process.

It starts Ray, keeps the record of it, collects what Ray's programs leave, and when Ray has ended it ends all the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from typing import TYPE_CHECKING

from rlbox.cluster.programs import node_files, node_here, node_procs, node_ray, node_run
from rlbox.cluster.programs.node_wire import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlbox.cluster.programs.node_procs import Life
    from rlbox.cluster.programs.node_wire import Row

_LOOK_S = 0.1
_SUBREAPER = 36
_SESSION = re.compile(rb"--session[-_]dir=([^\0]+)")


def keep(told: Row, say: Callable[[Row], None]) -> None:
    """Start Ray as it is told, say whether that worked, and stay until it has ended and nothing of it is left."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans come to it, and stay below it
    life: Life = {key: told[key] for key in ("id", "name", "image", "labels")}
    life.update(boot=node_procs.boot(), group=node_procs.enter_group(life["id"]), pid=os.getpid())
    try:
        os.mkdir(node_here.scratch(life["id"]), 0o700)
        life["temp"] = node_here.make_temp(told["disk"])
        child = node_run.begun(told["words"], told["env"], _log(told))
    except OSError as error:
        node_procs.leave_group(life["group"])
        node_procs.remove_group(life)
        say({"failed": f"Ray cannot be started: {error.strerror}"})
        return
    life.update(pid_born=node_procs.born(os.getpid()), child=child, child_born=node_procs.born(child))
    life.update(started=_now(), finished="", exit_code=0, session="", said="")
    _write(told, life)
    say({"kept": child})
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    _wait(told, life)
    node_procs.kill_all(life)
    if life["group"]:
        node_procs.leave_group(life["group"])
        node_procs.remove_group(life)


def _wait(told: Row, life: Life) -> None:
    """Collect what ends, until it is Ray itself; its session is in the words of its parts once they are there."""
    ended: dict[int, int] = {}
    while life["child"] not in ended:
        ended = node_procs.collect()
        if not life["session"] and _find_session(life):
            _write(told, life)
        time.sleep(_LOOK_S)
    text = node_files.read(told["disk"], f"{told['path']}/{node_here.LOG}")
    said = node_ray.ended_part(text.encode())
    life.update(exit_code=ended[life["child"]], finished=_now(), said=said)
    _write(told, life)


def _find_session(life: Life) -> bool:
    for pid in node_procs.members(life):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            found = _SESSION.search(file.read())
            folder, session = os.path.split(found.group(1).decode()) if found else ("", "")
            if session and folder == life["temp"]:
                life["session"] = session
                return True
    return False


def _log(told: Row) -> int:
    *parts, name = f"{told['path']}/{node_here.LOG}".split("/")
    with node_files.Beneath(told["disk"], parts) as folder:
        return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.handle)


def _write(told: Row, life: Life) -> None:
    with contextlib.suppress(OSError):  # a full disk ends no Ray
        node_files.write(told["disk"], f"{told['path']}/{node_here.RECORD}", to_json(life), 0o600, [])


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
