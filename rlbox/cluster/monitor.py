"""Watch the nodes of a cluster while something runs on it: what happens to one is known long before Ray reports it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

from rlbox.cluster.connection import Node, UnreachableNode
from rlbox.cluster.context import ClusterContext, ExistingCluster
from rlbox.cluster.facts import read_disk, read_instances
from rlbox.cluster.failures import Failure, MemberFacts, find_member_failures, format_failure_findings
from rlbox.cluster.status import connect_from_others_by_target, find_status
from rlbox.errors import RlboxError
from rlbox.findings import Finding

_POLL_S = 1.5
_ANSWER_S = 6.0
_SETTLE_S = 2.0
"""A machine that goes down ends its connections first: whether others reach it is looked at again after this."""


class NodeMonitor:
    """Says what happens to nodes as it does, each thing once, until it is closed.

    Parameters
    ----------
    offsets
        Seconds that each node's clock is ahead of this machine's.
    """

    def __init__(self, context: ClusterContext, cluster: ExistingCluster, offsets: Mapping[str, float]) -> None:
        self._context, self._cluster, self._offsets = context, cluster, offsets
        self._pool = context.pool.select_skipping_unconnected(
            [name for name in context.pool.nodes if name in cluster.instances]
        )
        self._failures: dict[str, Failure] = {}  # the first of each node: what happens to it later comes of that
        self._shown: set[tuple[str, str]] = set()
        self._silent: set[str] = set()
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._run, name="nodes", daemon=True).start()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        """Ask every node that was heard the last time, and say what happened."""
        with self._lock:
            names = [name for name in self._pool.nodes if name not in self._silent]
            members, errors = self._pool.select_skipping_unconnected(names).try_map(self._ask)
            failures = find_member_failures(members.values())
            for name, error in errors.items():
                self._silent.add(name)
                said = error.finding.title if isinstance(error, UnreachableNode) else error.what
                failures += self._explain_silence(name, said)
            for failure in failures:
                self._failures.setdefault(failure.node, failure)
                if not self._closed.is_set():
                    self._show(*format_failure_findings([failure], {}, ""))

    def _ask(self, node: Node) -> MemberFacts:
        known = self._cluster.instances[node.name]
        report = node.call("clusters", _ANSWER_S, disk=node.spec.data, here=known.is_inplace)
        instances = read_instances(report["clusters"]) if "clusters" in report else (known,)
        return MemberFacts(
            name=node.name,
            instance=next((one for one in instances if one.id == known.id), None),
            disk=read_disk(report["disk"]),
            offset=self._offsets.get(node.name, 0.0),
            is_inplace=known.is_inplace,
        )

    def _explain_silence(self, name: str, said: str) -> tuple[Failure, ...]:
        members = [member for member in self._cluster.plan.members if member.name == name]
        failures: tuple[Failure, ...] = ()
        for pause in (_SETTLE_S, 0.0):
            attempts = connect_from_others_by_target(self._context.pool, self._cluster.plan, members)[name]
            failures = find_member_failures([MemberFacts(name=name, unreached=said, attempts=attempts)])
            if not any(one.id == "connection-cut" for one in failures) or self._closed.wait(pause):
                break
        return failures

    def _show(self, finding: Finding) -> None:
        if (finding.where, finding.id) not in self._shown:
            self._shown.add((finding.where, finding.id))
            self._context.app.print_status(f"{finding.where}: {finding.title}: {finding.seen}")

    def is_heard(self, name: str) -> bool:
        return name in self._pool.nodes and name not in self._silent

    def get_liveness_by_node(self) -> dict[str, bool]:
        """Return of each node whether it answers."""
        return {name: self.is_heard(name) for name in self._pool.nodes}

    def probe_and_list_findings(self) -> tuple[Finding, ...]:
        """Return what happened to nodes, the first first, and say what was not said."""
        self._look()  # the head may have ended a moment ago, and be why this is asked
        failures = sorted(self._failures.values(), key=lambda one: (one.is_consequence, one.since or 0.0))
        findings = format_failure_findings(failures, {}, "")
        if not self._silent:
            with contextlib.suppress(RlboxError):
                probe = self._context.probe()
                cluster = self._context.find_largest_own_cluster(probe) or self._cluster
                findings = find_status(self._context, probe, cluster).failures
        for finding in findings:
            self._show(finding)
        return findings

    def close(self) -> None:
        self._closed.set()
