"""What happens on a node, told as it does: containers that end, a disk that fills, lines that logs get."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

from rlbox.cluster.act.programs import node_engine
from rlbox.cluster.act.programs.node_files import Beneath, names

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlbox.cluster.act.programs.node_wire import Row

_PAUSE_S = 0.25
_DISK_S = 2.0
_BLOCK = 1 << 20
_AGAIN_S = 2.0


def watch(engine: str, row: Row, part: Callable[[Row], None], ended: threading.Event) -> Row:
    """Tell of the ends of a cluster's containers, and of a data disk that has less than `least` bytes left."""
    threading.Thread(target=_events, args=(engine, row["id"], part, ended), daemon=True).start()
    low = False
    while not ended.wait(_DISK_S):
        try:  # a disk that is gone is told as one that is full
            space = os.statvfs(row["disk"])
            free = space.f_bavail * space.f_frsize
        except OSError as error:
            part({"disk": -1, "at": time.time(), "said": error.strerror or str(error)})
            continue
        if (free < row["least"]) != low:
            low = free < row["least"]
            part({"disk": free, "at": time.time(), "low": low})
    return {}


def _events(engine: str, cluster: str, part: Callable[[Row], None], ended: threading.Event) -> None:
    """Tell of containers of a cluster that end, also while the engine is started anew."""
    told: set[str] = set()
    while not ended.is_set():
        with contextlib.suppress(OSError, ValueError):
            for one in node_engine.containers(engine, f"{node_engine.CLUSTER_LABEL}.id={cluster}"):
                if one["status"] in ("exited", "dead") and one["finished"] not in told:
                    told.add(one["finished"])
                    part({"ended": one, "at": time.time()})
            for event in node_engine.ends_of(engine, cluster):
                found = [
                    one
                    for one in node_engine.containers(engine, f"{node_engine.CLUSTER_LABEL}.id={cluster}")
                    if one["id"] == event.get("id")
                ]
                for one in found or [{"id": event.get("id"), "name": "", "status": "removed", "exit_code": -1}]:
                    told.add(one.get("finished", ""))
                    part({"ended": one, "at": event.get("timeNano", 0) / 1e9 or time.time()})
        ended.wait(_AGAIN_S)


def follow(row: Row, part: Callable[[Row], None], ended: threading.Event) -> Row:
    """Tell the last lines of each log of the newest session in a folder, and with `grow` what comes behind them."""
    disk, folder = row["disk"], row["folder"]
    places: dict[str, int] = {}
    rests: dict[str, bytes] = {}
    first = True
    while True:
        path = _newest(disk, folder)
        for name in names(disk, path) if path else ():
            if not any(fnmatch.fnmatch(name, sign) for sign in row["names"]):
                continue
            known = f"{path}/{name}"
            lines = _new_lines(disk, path, name, places, rests, row["lines"] if known not in places and first else -1)
            if lines:
                part({"file": name, "lines": lines, "at": time.time()})
        first = False
        if not row["grow"] or ended.wait(_PAUSE_S):
            return {}


def _newest(disk: str, folder: str) -> str:
    """Return the folder of logs of the newest session of Ray in a folder, empty before there is one."""
    found = [name for name in names(disk, folder) if name.startswith("session_") and name != "session_latest"]
    return f"{folder}/{max(found)}/logs" if found else ""


def _new_lines(
    disk: str, path: str, name: str, places: dict[str, int], rests: dict[str, bytes], last: int
) -> list[str]:
    """Return what a log got since the last time; the first time its `last` lines, -1 for all."""
    known = f"{path}/{name}"
    try:
        with Beneath(disk, path.split("/")) as folder:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder.handle)
    except OSError:
        return []
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            return []
        at = places.get(known, max(0, facts.st_size - _BLOCK) if last >= 0 else 0)
        data = os.pread(handle, _BLOCK, at) if facts.st_size > at else b""
    finally:
        os.close(handle)
    places[known] = at + len(data)
    *lines, rests[known] = (rests.get(known, b"") + data).split(b"\n")
    texts = [line.decode("utf-8", "replace") for line in lines]
    return texts[len(texts) - min(last, len(texts)) :] if last >= 0 else texts
