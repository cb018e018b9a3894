"""How a node runs Ray: in a container of its engine, or as processes of this user. Nothing else here knows both.

Either is one life of Ray with an id, labels, a state and an exit code; what is asked of it is asked here.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from rlbox.cluster.programs import node_engine, node_files, node_net, node_procs
from rlbox.cluster.programs.node_here import KIND, Lives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlbox.cluster.programs.node_wire import Row

_LOOK_S, _AGAIN_S = 0.5, 2.0
_FULL = 0.01
"""Share of a disk that is left when it is told as full."""


class Carried:
    """The lives of Ray on this node; `engine` is the socket of its engine, `disk` its data disk."""

    def __init__(self, engine: str, disk: str, program: Callable[[], tuple[list[str], bytes]]) -> None:
        self._engine, self._disk = engine, disk
        self._here = Lives(disk, program)
        self._lock = threading.Lock()
        self._undone: set[str] = set()

    def rows(self, engine: bool) -> list[Row]:
        """Return every life: of processes, and those of the engine where that is to be asked."""
        return (node_engine.containers(self._engine) if engine else []) + self._here.rows()

    def start_here(self, row: Row) -> Row:
        """Start Ray as processes; nothing of a call that was undone meanwhile."""
        with self._lock:
            if row["call"] in self._undone:
                return {"life": ""}
            return self._here.start(row)

    def end_call(self, row: Row) -> list[str]:
        """End and remove what a call began; return the sessions of its containers' Ray, on the disk."""
        with self._lock:
            self._undone.add(row["call"])
            self._here.end_call(row["call"])
        return [] if row["here"] else _sessions(node_engine.remove_call(self._engine, row["call"]), row["mount"])

    def take_down(self, ids: Iterable[str], grace: int, mount: str, retire: bool = False) -> list[str]:
        """End lives and remove containers; return the sessions of their Ray, on the disk."""
        here, there = _parted(ids)
        self._here.end(here, grace)
        if retire:
            self._here.retire(here)
        return _sessions(node_engine.take_down(self._engine, there, grace), mount)

    def clear(self, folder: str) -> int:
        """Forget what processes left in a cluster's folder; return how many sessions of Ray went."""
        return self._here.clear(folder)

    def listening(self, ids: Iterable[str]) -> list[Row]:
        """Return the ports that processes of lives listen on."""
        here, there = _parted(ids)
        pids = [str(pid) for one in here for pid in node_procs.members(self._here.of(one))]
        return node_net.listening_of(there, pids)

    def tell_news(self, engine: bool, part: Callable[[Row], None], ended: threading.Event) -> None:
        """Tell that it is watched, then as soon as a life ends or the data disk is full, until `ended` is set."""
        if engine:
            threading.Thread(target=self._tell_ends, args=(part, ended), daemon=True).start()
        going, full = self._running(), False
        part({})
        while not ended.wait(_LOOK_S):
            now = self._running()
            for one in going - now:
                part({"ended": one})
            disk = node_files.disk_facts(self._disk)
            if full != (disk["there"] and disk["free"] < _FULL * disk["size"]):
                full = not full
                part({"disk": disk})
            going = now

    def _running(self) -> set[str]:
        return {row["id"] for row in self._here.rows() if row["status"] == "running"}

    def _tell_ends(self, part: Callable[[Row], None], ended: threading.Event) -> None:
        """Tell what the engine tells; an engine that is started anew meanwhile is heard again."""
        while not ended.is_set():
            with contextlib.suppress(OSError):
                for one in node_engine.ends(self._engine, ended):
                    part({"ended": one})
            ended.wait(_AGAIN_S)

    def logs(self, one: str, mount: str) -> tuple[str, list[str]]:
        """Return the folder of a life's logs: one that is there, and the way on from it."""
        if not is_container(one):
            return self._here.logs(one)
        names = _sessions([node_engine.link_of(self._engine, one, "/tmp/ray")], mount)  # noqa: S108 - in the container
        ray = f"ray/{names[0] if names else 'none'}"
        sessions = [name for name in node_files.names(self._disk, ray) if name.startswith("session_2")]
        return self._disk, [*ray.split("/"), sessions[-1] if sessions else "none", "logs"]

    def output(self, one: str, lines: int) -> str:
        """Return the last lines of Ray's own start, of a life of processes."""
        return self._here.output(one, lines)


def is_container(one: str) -> bool:
    """Whether the id of a life is that of a container."""
    return not one.startswith(KIND)


def _parted(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    known = list(ids)
    return [one for one in known if not is_container(one)], list(filter(is_container, known))


def _sessions(links: list[str], mount: str) -> list[str]:
    inside = f"{mount}/ray/"
    return [link[len(inside) :] for link in links if link.startswith(inside)]
