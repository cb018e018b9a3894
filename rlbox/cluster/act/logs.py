"""The logs of Ray on all nodes as one, in the order of time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.act.jobs import session_of
from rlbox.cluster.act.reach.link import Going, Link
from rlbox.cluster.act.story import story_of
from rlbox.cluster.merge import Dated, Merge, NodeLine, shown
from rlbox.cluster.ray import container_name
from rlbox.cluster.wish import ClusterWish
from rlbox.errors import NodeError, RlboxError

ALL = ("*.log", "*.out", "*.err")
_PATIENCE_S, _TICK_S = 1.0, 0.1


@dataclass(frozen=True, kw_only=True)
class LogWish:
    """Which logs: of one node or all, by patterns of file names, the last lines of each, and what comes."""

    node: str = ""
    names: tuple[str, ...] = ALL
    lines: int = 50
    grow: bool = False


def read_logs(app: App, wish: ClusterWish, logs: LogWish, show: Callable[[str], None]) -> int:
    """Show the logs, merged by time with each clock's offset taken off; return how many lines there were.

    Raises
    ------
    NodeError
        There is no such cluster, or none of its nodes has logs.
    """
    with story_of(app, wish) as story:
        survey = story.survey()
        standing = story.require_standing(survey)
        links = [link for link in story.fleet.links.values() if logs.node in ("", link.name)]
        if not links:
            raise NodeError(f"node {logs.node} is none of cluster {story.name}, or does not answer")
        mount = story.image.container.mount
        heard: queue.Queue[tuple[str, str, list[str], float] | None] = queue.Queue()
        goings = []
        for link in links:
            folder = session_of(link, container_name(standing.plan), mount)
            goings.append(_start(link, folder, logs, heard))
        try:
            return _show(heard, len(goings), Dated(survey.offsets), max(map(len, survey.facts)), logs, show)
        finally:
            for going in goings:
                going.end()


def _start(
    link: Link, folder: str, logs: LogWish, heard: queue.Queue[tuple[str, str, list[str], float] | None]
) -> Going:
    going = link.start(
        "follow", disk=link.wish.data, folder=folder, names=list(logs.names), lines=logs.lines, grow=logs.grow
    )

    def listen() -> None:
        try:
            for row in going:
                heard.put((link.name, str(row["file"]), list(row["lines"]), float(row["at"])))
        except RlboxError:  # the node is gone: the others' logs go on
            pass
        heard.put(None)

    threading.Thread(target=listen, name=f"logs of {link.name}", daemon=True).start()
    return going


def _show(
    heard: queue.Queue[tuple[str, str, list[str], float] | None],
    open_: int,
    dated: Dated,
    width: int,
    logs: LogWish,
    show: Callable[[str], None],
) -> int:
    merge, count = Merge(_PATIENCE_S), 0

    def out(line: NodeLine) -> None:
        nonlocal count
        count += 1
        show(shown(line, width))

    while open_:
        try:
            row = heard.get(timeout=_TICK_S)
            if row is None:
                open_ -= 1
                continue
            node, file, texts, came = row
            for line in dated.lines(node, file, texts, came):
                merge.put(line, time.monotonic())
        except queue.Empty:
            pass
        if logs.grow:
            for line in merge.ready(time.monotonic()):
                out(line)
    for line in merge.rest():
        out(line)
    return count
