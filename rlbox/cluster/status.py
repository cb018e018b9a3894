"""The state of a cluster and what happened to its nodes, asked once, or watched while something runs on it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from rlbox.amounts import align_translated, decimal_size_text
from rlbox.app import App
from rlbox.cluster.checks import BurnInResult, check_nodes, make_finding, run_all_reduce_checks
from rlbox.cluster.node.facts import DiskFacts, RayInstance
from rlbox.cluster.nodes import (
    ConnectionAttempt,
    ExistingCluster,
    Node,
    NodePool,
    UnreachableNode,
    attempt_connections_from_nodes,
    choose_ports_and_probe_connections,
    open_context,
    probe_instances,
)
from rlbox.cluster.plan import LOCAL, MACHINE_LABEL, ClusterOptions, ClusterPlan
from rlbox.cluster.runtime import RayState, find_member_faults, query_ray_nodes_or_error, role_of
from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _, join, translate

_HEADER = (_("node"), _("role"), _("address"), _("container"), "Ray", "GPUs", _("object store"), _("disk free"))
_SSH_PORT = 22
_KILLED, _PART_KILLED = 137, "-9"
_POLL_S, _ANSWER_S = 1.5, 6.0
_SETTLE_S = 2.0
"""A machine that goes down ends its connections first: whether others reach it is looked at after this."""


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """`missing` is what Ray lacks of the node; `store` and `disk_free` are in bytes."""

    name: str
    role: str
    address: str
    container: str
    missing: str
    gpus: int
    gpus_used: float
    cpus: float
    store: float
    disk_free: int
    is_inplace: bool = False

    @property
    def is_up_and_joined(self) -> bool:
        return not self.missing and self.container == "running"

    def as_json(self) -> dict[str, Any]:
        row = dataclasses.asdict(self)
        return {**row, "here": row.pop("is_inplace"), "healthy": self.is_up_and_joined}


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """`ray_error` is why Ray could not be asked; `failures` are what happened to nodes, the first first."""

    plan: ClusterPlan
    nodes: tuple[NodeStatus, ...]
    ray_error: str = ""
    failures: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        return all(node.is_up_and_joined for node in self.nodes) and not self.failures

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster": self.plan.as_json(),
            "healthy": self.healthy,
            "nodes": [node.as_json() for node in self.nodes],
            "said": self.ray_error,
            "listens": [],  # readers of before ask for it
            "failures": [one.as_json() for one in self.failures],
        }

    def text(self) -> str:
        plan, used = self.plan, f"{sum(node.gpus_used for node in self.nodes):g}"
        gpus = _(", {used} of {gpus} GPUs used").format(used=used, gpus=plan.gpus) if plan.gpus else ""
        head = _("cluster {name} of {target}: Ray {ray}, {count} nodes{gpus}").format(
            name=plan.name, target=plan.target, ray=plan.ray, count=len(self.nodes), gpus=gpus
        )
        failures = [join(": ", filter(None, (one.where, one.title, one.seen))) for one in self.failures]
        closed = _("closed by a token; by {maker}, {made}").format(maker=plan.maker, made=plan.made)
        text = _("dashboard: http://127.0.0.1:{port} on {node}")
        if plan.head.name != LOCAL:
            text = _("dashboard: http://127.0.0.1:{port} on {node}, here by: ssh -N -L {port}:127.0.0.1:{port} {node}")
        dashboard = text.format(port=plan.ports.of("dashboard"), node=plan.head.name)
        rows = [
            (
                one.name,
                _("{role}, no engine").format(role=_(one.role)) if one.is_inplace else _(one.role),
                one.address,
                one.container,
                one.missing or _("alive"),
                f"{one.gpus_used:g}/{one.gpus}",
                *(decimal_size_text(size) if size else "-" for size in (one.store, one.disk_free)),
            )
            for one in self.nodes
        ]
        return "\n".join(map(translate, [head, closed, dashboard, *align_translated([_HEADER, *rows]), *failures]))


class NodeFailure(NamedTuple):
    """What happened to a node; `since` in seconds since 1970, 0 where nothing tells.

    `is_consequence`: it is what happens to a node when another one ends.
    """

    finding: Finding
    is_consequence: bool = False
    since: float = 0.0


def sort_causes_before_consequences_marking_first(failures: Iterable[NodeFailure]) -> tuple[Finding, ...]:
    """Return what happened, the first first: what has a cause of its own before what ends when others do, then by time.

    A machine that does not answer has no time of its own; it stands before what ended after it without a cause.
    """
    ordered = sorted(failures, key=lambda one: (one.is_consequence, one.since))
    findings = [one.finding for one in ordered]
    if len(ordered) > 1 and not ordered[0].is_consequence:
        seen = filter(None, (findings[0].seen, _("it failed first")))
        findings[0] = dataclasses.replace(findings[0], seen=join(", ", seen))
    return tuple(findings)


def make_unreachable_node_failure(node: str, error: str, attempts: Sequence[ConnectionAttempt]) -> NodeFailure:
    """Return whether it is our connection or the machine: others have tried, and one that refuses is there."""
    for one in attempts:
        if not one.error or "refused" in one.error:
            return NodeFailure(make_finding("connection-cut", node, error, source=one.source), is_consequence=True)
    return NodeFailure(make_finding("host-gone" if attempts else "host-unknown-state", node, error))


def find_failure(
    node: str,
    instance: RayInstance | None,
    disk: DiskFacts,
    *,
    missing: str = "",
    is_restarted: bool = False,
    clock_offset_s: float = 0.0,
) -> NodeFailure | None:
    """Return what happened to a node that answers, by what its engine, its machine and Ray say: the first rule counts.

    `missing` is what Ray lacks of it. `is_restarted`: the machine was started after its Ray was; `clock_offset_s` are
    the seconds that its clock is ahead of this machine's.
    """
    if instance is None:
        return NodeFailure(make_finding("container-gone", node))
    has_ended, inplace = not instance.has_not_ended, instance.is_inplace
    space = {"path": disk.path, "free": decimal_size_text(disk.free), "size": decimal_size_text(disk.size)}
    part, __, part_code = instance.first_ended_part_with_code.partition(" ")
    rules = (
        (has_ended and instance.oom, "out-of-memory", ""),
        (has_ended and is_restarted, "host-restarted", ""),
        (disk.is_over_99_percent_full, "data-disk-full", ""),
        (has_ended and instance.exit_code == _KILLED, "processes-killed" if inplace else "container-killed", ""),
        (has_ended and part_code == _PART_KILLED, "part-killed", part),
        (bool(missing), "cut-off-and-ended" if has_ended else "cut-off", missing),
        (has_ended, "processes-ended" if inplace else "ray-ended", ""),
    )
    text_id, seen = next((rule[1:] for rule in rules if rule[0]), ("", ""))
    if not text_id:
        return None
    since = _parse_time_or_zero(instance.finished, clock_offset_s) if has_ended else 0.0
    at = _("since {at:%H:%M:%S} UTC").format(at=datetime.fromtimestamp(since, timezone.utc)) if since else ""
    finding = make_finding(text_id, node, seen, **space)
    exit_code = _("exit code {code}").format(code=instance.exit_code) if has_ended else ""
    finding = dataclasses.replace(finding, seen=join(", ", filter(None, (exit_code, finding.seen, at))))
    return NodeFailure(finding, finding.id in ("ray-ended", "cut-off"), since)


def _parse_time_or_zero(text: str, clock_offset_s: float) -> float:
    """Return the time that an engine wrote, by this machine's clock."""
    seconds, __, part = text.rstrip("Z").partition(".")
    with contextlib.suppress(ValueError):
        at = datetime.fromisoformat(f"{seconds}.{part[:6]:0<6}+00:00")
        return at.timestamp() - clock_offset_s if at.year > 1 else 0.0
    return 0.0


# ---- asking


def require_own_cluster_status(app: App, options: ClusterOptions) -> ClusterStatus:
    with open_context(app, options) as context:
        return query_ray_for_cluster_status(context.require_own_cluster())


def query_ray_for_cluster_status(cluster: ExistingCluster) -> ClusterStatus:
    context, probe, plan, instances = cluster
    head = context.pool.nodes.get(plan.head.name)
    if head is None:
        state = RayState(error=_("its head is none of the nodes that answer"))
    elif not cluster.was_found_running_on(head.name):
        state = RayState(error=_("its head does not run"))
    else:
        state = query_ray_nodes_or_error(head, plan)
    remedies = {one.where: one.remedy for one in context.pool.unreached}
    failures = tuple(
        dataclasses.replace(one, remedy=remedies.get(one.where, context.options.repair_hint_text))
        for one in sort_causes_before_consequences_marking_first(filter(None, _list_failures(cluster, state)))
    )
    missing, nodes = find_member_faults(plan, state), []
    for member in plan.members:
        ray, facts = state.find_alive_node(member.name), probe.facts.get(member.name)
        total, free = (ray.total, ray.free) if ray else ({}, {})
        nodes.append(
            NodeStatus(
                name=member.name,
                role=role_of(plan, member),
                address=member.address,
                container=_format_instance(instances.get(member.name)) if facts else _("not reached"),
                missing=_("not asked") if state.error else missing.get(member.name, ""),
                gpus=member.gpus,
                gpus_used=total.get("GPU", 0) - free.get("GPU", 0),
                cpus=total.get("CPU", 0),
                store=total.get("object_store_memory", 0),
                disk_free=facts.disk.free if facts else 0,
                is_inplace=member.is_inplace,
            )
        )
    return ClusterStatus(plan=plan, nodes=tuple(nodes), ray_error=state.error, failures=failures)


def _format_instance(one: RayInstance | None) -> str:
    if one is None:
        return _("gone")
    text = _("{status} ({code}, out of memory)") if one.oom else _("{status} ({code})")
    return _(one.status) if one.has_not_ended else text.format(status=_(one.status), code=one.exit_code)


def _list_failures(cluster: ExistingCluster, state: RayState) -> Iterator[NodeFailure | None]:
    context, probe, plan, instances = cluster
    unreached = {one.where: join(": ", (one.title, one.seen)) for one in context.pool.unreached}
    missing = {plan.head.name: state.error} if state.error else find_member_faults(plan, state)
    attempts = _connect_from_others(context.pool, plan, list(unreached))
    for name in [member.name for member in plan.members]:
        facts, instance = probe.facts.get(name), instances.get(name)
        if facts is None:
            error = unreached.get(name, _("it is none of the nodes that were named"))
            yield make_unreachable_node_failure(name, error, [one for one in attempts if one.node == name])
            continue
        now = facts.machine.identity_until_restart
        yield find_failure(
            name,
            instance,
            facts.disk,
            missing=missing.get(name, ""),
            is_restarted=instance is not None and instance.labels.get(MACHINE_LABEL, now) != now,
            clock_offset_s=probe.clock_offsets_s[name],
        )


def _connect_from_others(pool: NodePool, plan: ClusterPlan, unreached: Sequence[str]) -> tuple[ConnectionAttempt, ...]:
    """Return how the other nodes reach those that are not heard of: at sshd's usual port, and at Ray's."""
    ports = (_SSH_PORT, plan.ports.of("node-manager"))
    lost = [member for member in plan.members if member.name in unreached]
    endpoints = [(member.name, member.address, port) for member in lost for port in ports]
    sources = [name for name in pool.nodes if name not in unreached]
    return attempt_connections_from_nodes(pool, sources, endpoints) if endpoints else ()


class NodeFailureMonitor:
    """Says what happens to nodes as it does, each thing once, until it is closed: long before Ray reports it."""

    def __init__(self, cluster: ExistingCluster) -> None:
        self._cluster, self._context = cluster, cluster.context
        self._pool = cluster.context.pool.select_skipping_unconnected(cluster.instances)
        self._failures: dict[str, NodeFailure] = {}  # the first of each node: what happens to it later comes of that
        self._shown: set[tuple[str, str]] = set()
        self.silent_nodes: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        names = [name for name in self._pool.nodes if name not in self.silent_nodes]
        results, errors = self._pool.select_skipping_unconnected(names).try_map(self._find_failure)
        failures = [failure for failure in results.values() if failure]
        time.sleep(_SETTLE_S if errors else 0)
        for name, error in errors.items():
            self.silent_nodes.add(name)
            reason = error.finding.title if isinstance(error, UnreachableNode) else error.what
            attempts = _connect_from_others(self._context.pool, self._cluster.plan, [name])
            failures.append(make_unreachable_node_failure(name, reason, attempts))
        for failure in failures:
            self._failures.setdefault(failure.finding.where, failure)
        self._show([failure.finding for failure in failures])

    def _find_failure(self, node: Node) -> NodeFailure | None:
        known = self._cluster.instances[node.name]
        disk, instances = probe_instances(node, leave_out_containers=known.is_inplace, timeout_s=_ANSWER_S)
        instance = known if instances is None else next((one for one in instances if one.id == known.id), None)
        return find_failure(node.name, instance, disk, clock_offset_s=self._cluster.probe.clock_offsets_s[node.name])

    def _show(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            if (one.where, one.id) not in self._shown:
                self._shown.add((one.where, one.id))
                self._context.app.print_status(join(": ", (one.where, one.title, one.seen)))

    def stop_probe_and_show_findings(self) -> tuple[Finding, ...]:
        """Stop watching; return what happened to nodes, the first first, and say what was not said."""
        self.close()
        self._thread.join()
        self._look()  # the head may have ended a moment ago, and be why this is asked
        findings = sort_causes_before_consequences_marking_first(self._failures.values())
        if not self.silent_nodes:
            with contextlib.suppress(RlboxError):
                findings = query_ray_for_cluster_status(self._context.require_own_cluster()).failures
        self._show(findings)
        return findings

    def stop_show_and_format_error_with_findings(self, error: RlboxError) -> str:
        lines = [join(": ", (one.where, one.title, one.seen)) for one in self.stop_probe_and_show_findings()]
        return join("\n  ", [error.what, *lines])

    def close(self) -> None:
        self._closed.set()


class ExaminationResult(NamedTuple):
    """`status` is None where there is no cluster, `proof` where its nodes were given no work."""

    findings: Sequence[Finding]
    nodes: int
    status: ClusterStatus | None
    proof: BurnInResult | None


def examine_cluster(
    app: App, options: ClusterOptions, paths: tuple[str, ...] = (), *, run_all_reduce: bool = False
) -> ExaminationResult:
    with open_context(app, options) as context:
        probe = context.probe(paths)
        cluster = context.require_own_cluster(probe) if run_all_reduce else context.find_most_running_own_cluster(probe)
        status = query_ray_for_cluster_status(cluster) if cluster else None
        if cluster is None:
            probe = choose_ports_and_probe_connections(context, probe, context.target.cluster.port)
        failures = status.failures if status else ()
        explained = {one.where for one in failures}  # it says more than that a node does not answer
        unreached = [one for one in context.pool.unreached if one.where not in explained]
        proof = run_all_reduce_checks(context, cluster.plan, probe) if run_all_reduce and cluster else None
        findings = (*failures, *check_nodes(context, probe, paths, unreached), *(proof.findings if proof else ()))
        return ExaminationResult(findings, len(probe.facts) + len(context.pool.unreached), status, proof)
