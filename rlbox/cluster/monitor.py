"""Watch the nodes of a cluster while something runs on it: what happens to one is known long before Ray reports it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from rlbox.amounts import duration_text
from rlbox.cluster.connection import NodeStream, read_streams
from rlbox.cluster.context import ClusterContext, RunningCluster
from rlbox.cluster.facts import read_disk, read_instances
from rlbox.cluster.failures import Failure, MemberFacts, find_failures, sort_failures
from rlbox.cluster.status import find_status, try_members
from rlbox.errors import RlboxError
from rlbox.findings import Finding

SILENT_S = 8.0
"""Nodes report every second; for how long nothing is heard of one before that is told."""

_SETTLE_S = 2.0
"""A machine that goes down ends its connections first: whether others reach it is looked at again after this."""

_LAST_S, _POLL_S, _FRESH_S = 8.0, 0.2, 3.0


class NodeMonitor:
    """Says what happens to nodes as it does, each thing once, until it is closed.

    Parameters
    ----------
    offsets
        Seconds that each node's clock is ahead of this machine's.
    """

    def __init__(self, context: ClusterContext, cluster: RunningCluster, offsets: Mapping[str, float]) -> None:
        self._context, self._cluster, self._offsets = context, cluster, offsets
        self._failures: list[Failure] = []
        self._shown: set[tuple[str, str]] = set()
        self._broken: set[str] = set()
        self._explained: set[str] = set()
        self._closed = threading.Event()
        self._streams: dict[str, NodeStream] = {}
        for name, node in context.pool.nodes.items():
            if instance := cluster.instances.get(name):
                node.heard_at = time.monotonic()
                self._streams[name] = node.stream("watch", disk=node.spec.data, here=instance.is_inplace)
        threading.Thread(target=self._run, args=(read_streams(self._streams),), name="nodes", daemon=True).start()

    def _run(self, reports: queue.Queue[tuple[str, dict[str, Any] | Any]]) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                name, report = reports.get(timeout=_POLL_S)
                if isinstance(report, dict):
                    self._context.pool.nodes[name].heard_at = time.monotonic()
                    self._add(find_failures([self._read_report(name, report)]))
                else:
                    self._broken.add(name)
            for name in self._streams:
                if self._is_silent(name) and name not in self._explained:
                    self._explain_silence(name)

    def describe_nodes(self) -> dict[str, dict[str, bool]]:
        """Return of each node whether it `answers`."""
        return {name: {"answers": self.is_heard(name)} for name in self._streams}

    def is_heard(self, name: str) -> bool:
        return name in self._streams and not self._is_silent(name)

    def _is_silent(self, name: str) -> bool:
        return name in self._broken or self._context.pool.nodes[name].silent_s() > SILENT_S

    def _read_report(self, name: str, report: Mapping[str, Any]) -> MemberFacts:
        known = self._cluster.instances[name]
        found = read_instances(report["clusters"]) if "clusters" in report else (known,)
        return MemberFacts(
            name=name,
            instance=next((one for one in found if one.id == known.id), None),
            disk=read_disk(report["disk"]),
            offset=self._offsets.get(name, 0.0),
            is_inplace=known.is_inplace,
        )

    def _explain_silence(self, name: str) -> None:
        node = self._context.pool.nodes[name]
        silent = f"nothing is heard of it for {duration_text(node.silent_s())}"
        said = "the connection broke" if name in self._broken else silent
        members = [member for member in self._cluster.plan.members if member.name == name]
        for pause in (_SETTLE_S, 0.0):
            attempts = try_members(self._context.pool, self._cluster.plan, members)[name]
            failures = find_failures([MemberFacts(name=name, unreached=said, attempts=attempts)])
            if not any(one.id == "connection-cut" for one in failures) or self._closed.wait(pause):
                break
        self._add(failures)
        self._explained.add(name)

    def _add(self, failures: tuple[Failure, ...]) -> None:
        for failure in failures:
            if not self._closed.is_set() and (failure.node, failure.id) not in self._shown:
                self._failures.append(failure)
                self._show(failure.finding("", is_first=False))

    def _show(self, finding: Finding) -> None:
        if (finding.where, finding.id) not in self._shown:
            self._shown.add((finding.where, finding.id))
            self._context.app.say(f"{finding.where}: {finding.title}: {finding.seen}")

    def list_findings(self) -> tuple[Finding, ...]:
        """Return what happened to nodes, the first first, and say what was not said.

        A node that says nothing is waited for until that is explained; where one is gone, what was said is all.
        """
        began = time.monotonic()
        while time.monotonic() - began < SILENT_S + _LAST_S and not all(map(self._is_settled, self._streams)):
            time.sleep(_POLL_S)
        fresh = time.monotonic() + _FRESH_S  # the head may have ended a moment ago, and be why this is asked
        nodes = [self._context.pool.nodes[name] for name in self._streams if self.is_heard(name)]
        while time.monotonic() < fresh and any(node.heard_at < began + 1.0 for node in nodes):
            time.sleep(_POLL_S)
        first: dict[str, Failure] = {}  # of a node; what happened to it later came of that
        for failure in list(self._failures):
            first.setdefault(failure.node, failure)
        failures = sort_failures(first.values())
        several = len(failures) > 1
        findings = tuple(one.finding("", is_first=several and at == 0) for at, one in enumerate(failures))
        if all(map(self.is_heard, self._streams)):
            with contextlib.suppress(RlboxError):
                probe = self._context.probe()
                cluster = self._context.find_cluster(probe) or self._cluster
                findings = find_status(self._context, probe, cluster).failures
        for finding in findings:
            self._show(finding)
        return findings

    def _is_settled(self, name: str) -> bool:
        return name in self._explained or (
            name not in self._broken and self._context.pool.nodes[name].silent_s() < SILENT_S / 2
        )

    def close(self) -> None:
        self._closed.set()
        for stream in self._streams.values():
            stream.close()
