"""The logs of all nodes of a cluster in one order, over the nodes' own connections."""

from __future__ import annotations

import os
import queue
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from rlbox.app import App
from rlbox.cluster.connection import NodeStream, read_streams
from rlbox.cluster.context import ClusterContext, ExistingCluster, open_context
from rlbox.cluster.jobs import JobsApi
from rlbox.cluster.options import LogsOptions
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.secrets.masks import SecretMasker

RAY_LOGS = ("job-driver-*.log", "worker-*.out", "worker-*.err", "raylet.*", "gcs_server.*", "dashboard.err")
_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_MOST_BYTES = 1 << 21


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a node's log; `at` in seconds since 1970 by the clock of this machine."""

    at: float
    node: str
    file: str
    text: str

    def format(self) -> str:
        """Return it with its time (UTC), node and log before it."""
        moment = datetime.fromtimestamp(self.at, timezone.utc)
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d} {self.node} {self.file}: {self.text}"


def parse_leading_utc_time(line: str) -> float | None:
    """Return the time that a line begins with, in UTC, as programs of Ray's in a container write it."""
    match = _TIME.match(line)
    if not match:
        return None
    try:
        moment = datetime.strptime(f"{match[1]} {match[2]}.{match[3] or 0} +0000", "%Y-%m-%d %H:%M:%S.%f %z")
    except ValueError:
        return None
    return moment.timestamp()


class LogLineTimestamper:
    """The time of each line of each log: its own, else that of the line before it.

    Parameters
    ----------
    offsets
        Seconds by which each node's clock is ahead of this machine's.
    """

    def __init__(self, offsets: Mapping[str, float]) -> None:
        self._offsets = offsets
        self._last: dict[tuple[str, str], float] = {}

    def timestamp_lines(self, node: str, report: Mapping[str, Any]) -> Iterator[LogLine]:
        """Yield the lines of a node's report; those that follow later were written at the node's time of reading.

        Lines before the first that has a time have that of it; of a text without any all are of when it was written.
        """
        for row in report["logs"]:
            file, lines = str(row["file"]), str(row["text"]).splitlines()
            written = float(row["at"] if report["first"] else report["now"])
            times = list(map(parse_leading_utc_time, lines))
            last = next((at for at in times if at is not None), max(written, self._last.get((node, file), 0.0)))
            for line, at in zip(lines, times, strict=True):
                last = last if at is None else at
                yield LogLine(at=last - self._offsets[node], node=node, file=file, text=line)
            self._last[node, file] = last


def sort_lines(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return lines by time; those of one log stay in their order."""
    return sorted(lines, key=lambda line: line.at)


def read_logs(app: App, options: LogsOptions, show: Callable[[LogLine], None]) -> None:
    """Show the lines of all nodes that answer; those that do not are named. With `follow` it ends by Ctrl-C alone.

    Raises
    ------
    NodeError
        There is no such cluster, or the connection to a node broke while it was followed.
    """
    masker = SecretMasker(os.environ)
    with open_context(app, options) as context:
        for line in context.pool.format_unreached():
            app.print_status(line)
        probe = context.probe()
        cluster = context.require_own_cluster(probe)
        patterns = _choose_patterns(context, cluster, options.job)
        names = [name for name in context.pool.nodes if name in cluster.instances]
        streams = {name: start_log_stream(context, cluster, name, patterns, follow=options.follow) for name in names}
        clocks, reports = LogLineTimestamper(probe.clock_offsets_s), read_streams(streams)
        try:
            lines = sort_lines(_read_first(reports, clocks, set(streams)))
            first = 0 if options.lines is None else max(0, len(lines) - options.lines)
            for log_line in lines[first:]:
                show(replace(log_line, text=masker.mask_text(log_line.text)))
            while options.follow:
                for log_line in _read_next(reports, clocks):
                    show(replace(log_line, text=masker.mask_text(log_line.text)))
        finally:
            for stream in streams.values():
                stream.close()


def _choose_patterns(context: ClusterContext, cluster: ExistingCluster, job: str) -> tuple[str, ...]:
    if not job:
        return RAY_LOGS
    found = JobsApi(context.require_running_head(cluster), cluster.plan).get_job(job)
    workers = (f"worker-*-{found.ray_job_id}-*.out", f"worker-*-{found.ray_job_id}-*.err") if found.ray_job_id else ()
    return (f"job-driver-{found.id}.log", *workers)


def start_log_stream(
    context: ClusterContext,
    cluster: ExistingCluster,
    node_name: str,
    patterns: Sequence[str],
    *,
    follow: bool,
    max_bytes: int = _MOST_BYTES,
) -> NodeStream:
    """Have a node report its logs of these patterns: the last `max_bytes` of each, with `follow` what they gain."""
    return context.pool.nodes[node_name].stream(
        "logs",
        disk=context.pool.nodes[node_name].spec.data,
        folder=cluster.plan.directory_relative_to_disk(node_name),
        here=cluster.instances[node_name].is_inplace,
        names=list(patterns),
        most=max_bytes,
        follow=follow,
    )


Reports = queue.Queue[tuple[str, dict[str, Any] | NodeError | None]]


def _read_first(reports: Reports, clocks: LogLineTimestamper, names: set[str]) -> list[LogLine]:
    """Return what the logs of all nodes hold by now."""
    lines: list[LogLine] = []
    while names:
        name, report = reports.get()
        if isinstance(report, NodeError):
            raise report
        if report is not None:
            lines += clocks.timestamp_lines(name, report)
        names = names - {name}
    return lines


def _read_next(reports: Reports, clocks: LogLineTimestamper) -> Iterator[LogLine]:
    """Yield what a node's logs gained; `NodeError` where the connection to it broke."""
    name, report = reports.get()
    if isinstance(report, NodeError):
        raise NodeError(report.what, next_step=_("the same command again: the cluster lives on")) from report
    if report is not None:
        yield from clocks.timestamp_lines(name, report)
