"""The logs of all nodes of a cluster in one order, over the nodes' own connections."""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from rlbox.app import App
from rlbox.cluster.connection import NodeStream
from rlbox.cluster.context import ClusterContext, ExistingCluster, open_context
from rlbox.cluster.jobs import JobsApi
from rlbox.cluster.nodes import ClusterOptions
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.secrets.masks import SecretMasker

_RAY_LOGS = ("job-driver-*.log", "worker-*.out", "worker-*.err", "raylet.*", "gcs_server.*", "dashboard.err")
_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")


class LogLine(NamedTuple):
    """A line of a node's log; `at` in seconds since 1970 by the clock of this machine."""

    at: float
    node: str
    file: str
    text: str

    def format(self) -> str:
        moment = datetime.fromtimestamp(self.at, timezone.utc)
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d} {self.node} {self.file}: {self.text}"


def parse_leading_utc_time(line: str) -> float | None:
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

    Lines before the first that has a time have that of it; of a text without any all are of when it was written.
    """

    def __init__(self, clock_offsets_s: Mapping[str, float]) -> None:
        self._clock_offsets_s = clock_offsets_s
        self._last: dict[tuple[str, str], float] = {}

    def timestamp_lines(self, node: str, report: Any) -> Iterator[LogLine]:
        """Yield the lines of a node's `LogReport`."""
        is_first, now, logs = report
        for file, text, written in logs:
            lines = [(parse_leading_utc_time(line), line) for line in text.splitlines()]
            begin = max(written if is_first else now, self._last.get((node, file), 0.0))
            last = next((at for at, __ in lines if at is not None), begin)
            for at, line in lines:
                last = last if at is None else at
                yield LogLine(last - self._clock_offsets_s[node], node, file, line)
            self._last[node, file] = last


def read_logs(
    app: App, options: ClusterOptions, show: Callable[[LogLine], None], *, job: str, lines: int | None, follow: bool
) -> None:
    """Show the last `lines` (None: all) of all nodes that answer, of one `job` where it is named.

    With `follow` it ends by Ctrl-C alone, or with a `NodeError` as the connection to a node breaks.
    """
    masker = SecretMasker(os.environ)
    with open_context(app, options) as context:
        for line in context.pool.format_unreached():
            app.print_status(line)
        probe = context.probe()
        cluster = context.require_own_cluster(probe)
        patterns = _choose_patterns(context, cluster, job)
        pool = context.pool.select_skipping_unconnected(list(cluster.instances))
        clocks = LogLineTimestamper(probe.clock_offsets_s)
        streams = pool.map(lambda node: cluster.start_log_stream(node, patterns, follow=follow))
        try:
            reports = pool.map(lambda node: streams[node.name].next())
            found = [line for name, report in reports.items() for line in clocks.timestamp_lines(name, report)]
            found.sort(key=lambda line: line.at)
            for log_line in found[0 if lines is None else max(0, len(found) - lines) :]:
                show(log_line._replace(text=masker.mask_text(log_line.text)))
            for name, report in _merge_streams(streams) if follow else ():
                for log_line in clocks.timestamp_lines(name, report):
                    show(log_line._replace(text=masker.mask_text(log_line.text)))
        finally:
            for stream in streams.values():
                stream.close()


def _choose_patterns(context: ClusterContext, cluster: ExistingCluster, job: str) -> tuple[str, ...]:
    if not job:
        return _RAY_LOGS
    found = JobsApi(context.require_running_head(cluster), cluster.plan).get_job(job)
    workers = (f"worker-*-{found.ray_job_id}-*.out", f"worker-*-{found.ray_job_id}-*.err") if found.ray_job_id else ()
    return (f"job-driver-{found.id}.log", *workers)


def _merge_streams(streams: Mapping[str, NodeStream]) -> Iterator[tuple[str, Any]]:
    reports: queue.Queue[tuple[str, Any]] = queue.Queue()

    def read(name: str, stream: NodeStream) -> None:
        try:
            for report in stream:
                reports.put((name, report))
        except NodeError as error:
            reports.put((name, error))

    for name, stream in streams.items():
        threading.Thread(target=read, args=(name, stream), name=f"reports of {name}", daemon=True).start()
    while True:
        name, report = reports.get()
        if isinstance(report, NodeError):
            raise NodeError(report.what, next_step=_("the same command again: the cluster lives on")) from report
        yield name, report
