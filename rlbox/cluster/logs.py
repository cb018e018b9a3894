"""The logs of all nodes of a cluster in one order, over the nodes' own connections."""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from rlbox.app import App
from rlbox.cluster.connection import RemoteStream
from rlbox.cluster.context import ClusterContext, RunningCluster, open_context
from rlbox.cluster.jobs import JobsApi, require_head
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.survey import Survey
from rlbox.errors import NodeError, RlboxError
from rlbox.i18n import _
from rlbox.secrets.masks import SecretMasker

_DATED = re.compile(r"\[?(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_AHEAD_S = 5.0
"""A line that says to be from later than its log was written is not believed."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a node's log; `at` in seconds since 1970 by the clock of this machine."""

    at: float
    node: str
    file: str
    text: str

    def shown(self) -> str:
        """Return it with its time (UTC), node and log before it."""
        moment = datetime.fromtimestamp(self.at, timezone.utc)
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d} {self.node} {self.file}: {self.text}"


def dated(text: str) -> float | None:
    """Return the time that a line begins with, in UTC, as programs of Ray's in a container write it."""
    found = _DATED.match(text)
    if not found:
        return None
    try:
        year, month, day, hour, minute, second = map(int, found.groups()[:6])
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    return (moment + timedelta(seconds=float(f"0.{found[7] or 0}"))).timestamp()


class LogClock:
    """The time of each line of one log: its own, else that of the line before it.

    Parameters
    ----------
    offset
        Seconds that the node's clock is ahead of this machine's.
    """

    def __init__(self, node: str, file: str, offset: float) -> None:
        self._node, self._file, self._offset = node, file, offset
        self._last: float | None = None

    def lines(self, text: str, written: float) -> list[LogLine]:
        """Return the lines of a text whose last was written at `written` by the node's clock.

        Lines before the first that has a time have that of it; of a text without any all are of when it was written.
        """
        rows = text.splitlines()
        own = [self._believed(row, written) for row in rows]
        if self._last is None:
            self._last = next((at for at in own if at is not None), written)
        elif not any(own):  # it says none: what it gained is new
            self._last = max(self._last, written)
        found = []
        for row, at in zip(rows, own, strict=True):
            self._last = max(self._last, at) if at is not None else self._last
            found.append(LogLine(at=self._last - self._offset, node=self._node, file=self._file, text=row))
        return found

    def _believed(self, row: str, written: float) -> float | None:
        at = dated(row)
        return at if at is not None and at <= written + _AHEAD_S else None


def merged(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return lines by time; those of one log stay in their order."""
    return sorted(lines, key=lambda line: line.at)


EVERYTHING = ("job-driver-*.log", "worker-*.out", "worker-*.err", "raylet.*", "gcs_server.*", "dashboard.err")
_MOST = 1 << 21
_HELD_S, _POLL_S = 1.0, 0.2
"""How long a line waits for older ones of other nodes, whose way here is longer."""


@dataclass(frozen=True, kw_only=True)
class LogsOptions(ClusterOptions):
    """Which logs: those of a job (empty: all), the last `lines` (None: all), and what comes from now on."""

    job: str = ""
    lines: int | None = None
    follow: bool = False


def read_logs(app: App, options: LogsOptions, show: Callable[[LogLine], None]) -> None:
    """Show the lines of all nodes that answer; those that do not are named. With `follow` it ends by Ctrl-C alone.

    Raises
    ------
    NodeError
        There is no such cluster, or the connection to a node broke while it was followed.
    """
    masks = SecretMasker(os.environ)
    with open_context(app, options) as context:
        for one in context.fleet.unreached:
            app.say(f"{one.where}: {one.title}: {one.seen}")
        survey = context.survey()
        standing = context.require_standing(survey)
        names = _names(context, standing, options.job)
        goings = {
            name: start_logs(context, standing, name, names, follow=options.follow)
            for name in _nodes(context, standing)
        }
        clocks = LogClocks(survey)
        parts = node_parts(goings)
        kept = merged(_begin(parts, clocks, set(goings)))
        for line in kept if options.lines is None else kept[len(kept) - min(options.lines, len(kept)) :]:
            show(masked(masks, line))
        if options.follow:
            for line in _grown(parts, clocks):
                show(masked(masks, line))


def _nodes(context: ClusterContext, standing: RunningCluster) -> tuple[str, ...]:
    return tuple(name for name in context.fleet.links if name in standing.containers)


def _names(context: ClusterContext, standing: RunningCluster, job: str) -> tuple[str, ...]:
    """Return the patterns of the files that are meant."""
    if not job:
        return EVERYTHING
    found = JobsApi(require_head(context, standing), standing.plan).job(job)
    workers = (f"worker-*-{found.ray_id}-*.out", f"worker-*-{found.ray_id}-*.err") if found.ray_id else ()
    return (f"job-driver-{found.id}.log", *workers)


def start_logs(
    context: ClusterContext,
    standing: RunningCluster,
    name: str,
    names: Iterable[str],
    *,
    follow: bool,
    most: int = _MOST,
) -> RemoteStream:
    """Have a node tell its logs of these patterns, the last `most` bytes of each, and with `follow` what they gain."""
    link = context.fleet.links[name]
    return link.start(
        "logs",
        disk=link.options.data,
        container=standing.containers[name].id,
        mount=context.image.container.mount,
        names=list(names),
        most=most,
        follow=follow,
    )


NodePart = tuple[str, dict[str, Any] | RlboxError | None]


def node_parts(goings: Mapping[str, RemoteStream]) -> queue.Queue[NodePart]:
    """Return what the nodes tell, each with the node's name; None where it is through, an error where that failed."""
    parts: queue.Queue[NodePart] = queue.Queue()

    def hear(name: str, going: RemoteStream) -> None:
        try:
            for part in going:
                parts.put((name, part))
            parts.put((name, None))
        except RlboxError as error:
            parts.put((name, error))

    for name, going in goings.items():
        threading.Thread(target=hear, args=(name, going), name=f"logs of {name}", daemon=True).start()
    return parts


class LogClocks:
    """The clock of each log of each node of a survey."""

    def __init__(self, survey: Survey) -> None:
        self._offsets = survey.offsets
        self._clocks: dict[tuple[str, str], LogClock] = {}

    def lines(self, node: str, part: Mapping[str, Any]) -> Iterator[LogLine]:
        """Yield the lines of a part; those that follow later were written at the node's time of reading."""
        for row in part["logs"]:
            key = node, str(row["file"])
            clock = self._clocks.setdefault(key, LogClock(*key, self._offsets[node]))
            yield from clock.lines(str(row["text"]), float(row["at"] if part["first"] else part["now"]))


def _begin(parts: queue.Queue[NodePart], clocks: LogClocks, nodes: set[str]) -> list[LogLine]:
    """Return what the logs of all nodes hold by now."""
    found: list[LogLine] = []
    while nodes:
        name, part = parts.get()
        if isinstance(part, RlboxError):
            raise part
        if part is not None:
            found += clocks.lines(name, part)
        nodes = nodes - {name}
    return found


def _grown(parts: queue.Queue[NodePart], clocks: LogClocks) -> Iterator[LogLine]:
    """Yield what the logs gain, each line once older ones had the time to come; all that came when a node breaks."""
    count, waiting = itertools.count(), list[tuple[float, int, LogLine]]()
    while True:
        broken: RlboxError | None = None
        for name, part in _come(parts):
            if isinstance(part, RlboxError):
                broken = part
            for line in clocks.lines(name, part) if isinstance(part, dict) else ():
                heapq.heappush(waiting, (line.at, next(count), line))
        while waiting and (broken or waiting[0][0] < time.time() - _HELD_S):
            yield heapq.heappop(waiting)[2]
        if broken:
            raise NodeError(broken.what, next_step=_("the same command again: the cluster lives on")) from broken


def _come(parts: queue.Queue[NodePart]) -> Iterator[NodePart]:
    """Yield what has come by now, after waiting for it a moment."""
    try:
        yield parts.get(timeout=_POLL_S)
        while True:
            yield parts.get_nowait()
    except queue.Empty:
        return


def masked(masks: SecretMasker, line: LogLine) -> LogLine:
    """Return a line without secrets."""
    return LogLine(at=line.at, node=line.node, file=line.file, text=masks.mask_text(line.text))
