"""The state of a cluster and what happened to its nodes, asked once, or watched while something runs on it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from rlbox.amounts import align_rows, decimal_size_text
from rlbox.app import App
from rlbox.cluster.connection import Node, NodePool, UnreachableNode
from rlbox.cluster.context import (
    ClusterContext,
    ClusterProbe,
    ConnectionAttempt,
    Endpoint,
    ExistingCluster,
    attempt_connections_from_nodes,
    open_context,
    probe_instances,
)
from rlbox.cluster.node.facts import DiskFacts, RayInstance
from rlbox.cluster.plan import LOCAL, ClusterOptions, ClusterPlan, plan_of_labels
from rlbox.cluster.runtime import RayState, find_member_faults, query_ray_nodes, role_of
from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _

_HEADER = ("node", "role", "address", "container", "Ray", "GPUs", "object store", "disk free")
_SSH_PORT = 22
_KILLED = 137
_PART_KILLED = "-9"
_POLL_S, _ANSWER_S = 1.5, 6.0
_SETTLE_S = 2.0
"""A machine that goes down ends its connections first: whether others reach it is looked at again after this."""


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
        plan = self.plan
        used = sum(node.gpus_used for node in self.nodes)
        gpus = f", {used:g} of {plan.gpus} GPUs used" if plan.gpus else ""
        head = f"cluster {plan.name} of {plan.target}: Ray {plan.ray}, {len(self.nodes)} nodes{gpus}"
        failures = [": ".join(filter(None, (one.where, one.title, one.seen))) for one in self.failures]
        closed = f"closed by a token; by {plan.maker}, {plan.made}"
        port = plan.ports.of("dashboard")
        dashboard = f"dashboard: http://127.0.0.1:{port} on {plan.head.name}"
        if plan.head.name != LOCAL:
            dashboard += f", here by: ssh -N -L {port}:127.0.0.1:{port} {plan.head.name}"
        rows = [
            (
                one.name,
                f"{one.role}, no engine" if one.is_inplace else one.role,
                one.address,
                one.container,
                one.missing or "alive",
                f"{one.gpus_used:g}/{one.gpus}",
                *(decimal_size_text(size) if size else "-" for size in (one.store, one.disk_free)),
            )
            for one in self.nodes
        ]
        return "\n".join([head, closed, dashboard, *align_rows([_HEADER, *rows]), *failures])


def create_status(
    plan: ClusterPlan, state: RayState, container_states: Mapping[str, str], disk_free_bytes: Mapping[str, int]
) -> ClusterStatus:
    missing = find_member_faults(plan, state)
    nodes = []
    for member in plan.members:
        ray = state.find_alive_node(member.name)
        total, free = (ray.total, ray.free) if ray else ({}, {})
        nodes.append(
            NodeStatus(
                name=member.name,
                role=role_of(plan, member),
                address=member.address,
                container=container_states.get(member.name, "not reached"),
                missing="not asked" if state.error else missing.get(member.name, ""),
                gpus=member.gpus,
                gpus_used=total.get("GPU", 0) - free.get("GPU", 0),
                cpus=total.get("CPU", 0),
                store=total.get("object_store_memory", 0),
                disk_free=disk_free_bytes.get(member.name, 0),
                is_inplace=member.is_inplace,
            )
        )
    return ClusterStatus(plan=plan, nodes=tuple(nodes), ray_error=state.error)


# ---- what happened to nodes


class MemberFacts(NamedTuple):
    """A node of a cluster as it is now.

    `unreached` is why this machine does not reach it, empty where it does; `attempts` are what the other nodes found
    when they tried then. `missing` is what Ray lacks of it. `is_restarted`: the machine was started after its Ray was;
    `clock_offset_s` are the seconds that its clock is ahead of this machine's.
    """

    name: str
    instance: RayInstance | None = None
    unreached: str = ""
    attempts: Sequence[ConnectionAttempt] = ()
    missing: str = ""
    disk: DiskFacts | None = None
    is_restarted: bool = False
    clock_offset_s: float = 0.0


class Failure(NamedTuple):
    """What happened to a node; `since` in seconds since 1970, 0 where nothing tells.

    `is_consequence`: it is what happens to a node when another one ends.
    """

    finding: Finding
    is_consequence: bool = False
    since: float = 0.0


def sort_failure_findings(failures: Iterable[Failure]) -> tuple[Finding, ...]:
    """Return what happened, the first first: what has a cause of its own before what ends when others do, then by time.

    A machine that does not answer has no time of its own; it stands before what ended after it without a cause.
    """
    ordered = sorted(failures, key=lambda one: (one.is_consequence, one.since))
    findings = [one.finding for one in ordered]
    if len(ordered) > 1 and not ordered[0].is_consequence:
        seen = ", ".join(filter(None, (findings[0].seen, "it failed first")))
        findings[0] = dataclasses.replace(findings[0], seen=seen)
    return tuple(findings)


def find_failure(member: MemberFacts) -> Failure | None:
    instance, disk = member.instance, member.disk
    if member.unreached:
        return _explain_silence(member)
    if instance is None:
        title = _("its container was removed, or the record of its processes")
        return Failure(Finding(id="container-gone", title=title, where=member.name))
    if not instance.has_not_ended:
        return _explain_end(member, instance)
    if disk and disk.is_full:
        title = _("its data disk is full")
        return Failure(Finding(id="disk-full", title=title, seen=_format_space(disk), where=member.name))
    if member.missing:
        title = _("its Ray runs, and the head does not have it: its way to the head is cut, or it hangs")
        return Failure(Finding(id="cut-off", title=title, seen=member.missing, where=member.name), is_consequence=True)
    return None


def _explain_silence(member: MemberFacts) -> Failure:
    """Return whether it is our connection or the machine: others have tried, and one that refuses is there."""
    reached_by = next((one.source for one in member.attempts if not one.error or "refused" in one.error), None)
    if reached_by is not None:
        id_, title = "connection-cut", _("this machine does not reach it, {source} does: the cluster lives on")
        title = title.format(source=reached_by)
    elif member.attempts:
        id_, title = "host-gone", _("neither this machine nor the other nodes reach it: it is off, or its cable is cut")
    else:
        id_, title = "host-unknown", _("this machine does not reach it")
    finding = Finding(id=id_, title=title, seen=member.unreached, where=member.name)
    return Failure(finding, is_consequence=reached_by is not None)


def _explain_end(member: MemberFacts, instance: RayInstance) -> Failure:
    """Return why Ray has ended, by what its engine, its machine and Ray say; the first rule that holds counts."""
    killed = _("its Ray was killed") if instance.is_inplace else _("its container was killed")
    ended = _("its Ray ended") if instance.is_inplace else _("Ray ended in its container")
    restarted = _("its machine was restarted: a reboot, or its power was cut")
    part, __, part_code = instance.first_ended_part_with_code.partition(" ")
    part_killed = _("a part of its Ray was killed, by hand or for memory")
    full = _format_space(member.disk) if member.disk and member.disk.is_full else ""
    rules = (
        (instance.oom, "out-of-memory", _("its container ran out of memory"), ""),
        (member.is_restarted, "host-restarted", restarted, ""),
        (bool(full), "disk-full", _("its data disk is full"), full),
        (instance.exit_code == _KILLED, "container-killed", killed, ""),
        (part_code == _PART_KILLED, "part-killed", part_killed, part),
        (bool(member.missing), "cut-off", _("Ray lost the way to it, and then it ended"), member.missing),
        (True, "ray-ended", ended, ""),
    )
    id_, title, seen = next(rule[1:] for rule in rules if rule[0])
    since = _parse_time_or_zero(instance.finished, member.clock_offset_s)
    at = f"since {datetime.fromtimestamp(since, timezone.utc):%H:%M:%S} UTC" if since else ""
    seen = ", ".join(filter(None, (f"exit code {instance.exit_code}", seen, at)))
    finding = Finding(id=id_, title=title, seen=seen, where=member.name)
    return Failure(finding, id_ in ("ray-ended", "cut-off"), since)


def _format_space(disk: DiskFacts) -> str:
    return _("{path}: {free} of {size} free").format(
        path=disk.path, free=decimal_size_text(disk.free), size=decimal_size_text(disk.size)
    )


def _parse_time_or_zero(text: str, clock_offset_s: float) -> float:
    """Return the time that an engine wrote, by this machine's clock."""
    seconds, __, part = text.rstrip("Z").partition(".")
    try:
        at = datetime.strptime(f"{seconds}.{part[:6] or 0} +0000", "%Y-%m-%dT%H:%M:%S.%f %z")
    except ValueError:
        return 0.0
    return at.timestamp() - clock_offset_s if at.year > 1 else 0.0


# ---- asking


def probe_cluster(app: App, options: ClusterOptions) -> ClusterStatus:
    with open_context(app, options) as context:
        probe = context.probe()
        if context.find_largest_own_cluster(probe) is None:
            for line in context.pool.format_unreached():
                app.print_status(line)
        return find_status(context, probe, context.require_own_cluster(probe))


def find_status(context: ClusterContext, probe: ClusterProbe, cluster: ExistingCluster) -> ClusterStatus:
    plan = cluster.plan
    head = context.pool.nodes.get(plan.head.name)
    if head is None:
        state = RayState(error="its head is none of the nodes that answer")
    elif not cluster.was_found_running_on(head.name):
        state = RayState(error="its head does not run")
    else:
        state = query_ray_nodes(head, plan)
    containers = {name: _format_instance(cluster.instances.get(name)) for name in probe.facts if plan.member(name)}
    disks = {name: facts.disk.free for name, facts in probe.facts.items()}
    remedies = {one.where: one.remedy for one in context.pool.unreached}
    back = f"rlbox cluster up {context.options.target_and_options_text} brings back what died"
    members = _list_member_facts(context, probe, cluster, state)
    found = sort_failure_findings(filter(None, map(find_failure, members)))
    failures = tuple(dataclasses.replace(one, remedy=remedies.get(one.where, back)) for one in found)
    return dataclasses.replace(create_status(plan, state, containers, disks), failures=failures)


def _format_instance(one: RayInstance | None) -> str:
    if one is None:
        return "gone"
    return one.status if one.has_not_ended else f"{one.status} ({one.exit_code}{', out of memory' if one.oom else ''})"


def _list_member_facts(
    context: ClusterContext, probe: ClusterProbe, cluster: ExistingCluster, state: RayState
) -> Iterator[MemberFacts]:
    plan = cluster.plan
    unreached = {one.where: f"{one.title}: {one.seen}" for one in context.pool.unreached}
    missing = {plan.head.name: state.error} if state.error else find_member_faults(plan, state)
    attempts = _connect_from_others(context.pool, plan, list(unreached))
    for member in plan.members:
        facts, instance = probe.facts.get(member.name), cluster.instances.get(member.name)
        # a repair writes the machine as it was then into the label of what it started
        own = plan_of_labels(instance.labels) if instance else None
        started_on = next((one.identity for one in own.members if one.name == member.name), "") if own else ""
        yield MemberFacts(
            name=member.name,
            instance=instance,
            unreached=unreached.get(member.name, "" if facts else "it is none of the nodes that were named"),
            attempts=[one for one in attempts if one.target.node == member.name],
            missing=missing.get(member.name, ""),
            disk=facts.disk if facts else None,
            is_restarted=bool(facts and started_on and started_on != facts.machine.identity_until_restart),
            clock_offset_s=probe.clock_offsets_s.get(member.name, 0.0),
        )


def _connect_from_others(pool: NodePool, plan: ClusterPlan, unreached: Sequence[str]) -> tuple[ConnectionAttempt, ...]:
    """Return how the other nodes reach those that are not heard of: at sshd's usual port, and at Ray's."""
    ports = (_SSH_PORT, plan.ports.of("node-manager"))
    endpoints = [
        Endpoint(one.name, one.address, port) for one in plan.members if one.name in unreached for port in ports
    ]
    sources = [name for name, node in pool.nodes.items() if not node.is_lost and name not in unreached]
    return attempt_connections_from_nodes(pool, dict.fromkeys(sources, endpoints))


class NodeMonitor:
    """Says what happens to nodes as it does, each thing once, until it is closed: long before Ray reports it."""

    def __init__(self, context: ClusterContext, cluster: ExistingCluster, clock_offsets_s: Mapping[str, float]) -> None:
        self._context, self._cluster, self._clock_offsets_s = context, cluster, clock_offsets_s
        self._pool = context.pool.select_skipping_unconnected(list(cluster.instances))
        self._failures: dict[str, Failure] = {}  # the first of each node: what happens to it later comes of that
        self._shown: set[tuple[str, str]] = set()
        self._silent: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        names = [name for name in self._pool.nodes if name not in self._silent]
        members, errors = self._pool.select_skipping_unconnected(names).try_map(self._ask)
        failures = [failure for member in members.values() if (failure := find_failure(member))]
        for name, error in errors.items():
            self._silent.add(name)
            reason = error.finding.title if isinstance(error, UnreachableNode) else error.what
            failures.append(self._explain_silence(name, reason))
        for failure in failures:
            self._failures.setdefault(failure.finding.where, failure)
        self._show([failure.finding for failure in failures])

    def _ask(self, node: Node) -> MemberFacts:
        known = self._cluster.instances[node.name]
        report = probe_instances(node, leave_out_containers=known.is_inplace, timeout_s=_ANSWER_S)
        instances = [known] if report.instances is None else report.instances
        return MemberFacts(
            name=node.name,
            instance=next((one for one in instances if one.id == known.id), None),
            disk=report.disk,
            clock_offset_s=self._clock_offsets_s.get(node.name, 0.0),
        )

    def _explain_silence(self, name: str, error: str) -> Failure:
        for pause_s in (_SETTLE_S, 0.0):
            attempts = _connect_from_others(self._context.pool, self._cluster.plan, [name])
            failure = _explain_silence(MemberFacts(name, unreached=error, attempts=attempts))
            if not failure.is_consequence:
                break
            time.sleep(pause_s)
        return failure

    def _show(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            if (one.where, one.id) not in self._shown:
                self._shown.add((one.where, one.id))
                self._context.app.print_status(f"{one.where}: {one.title}: {one.seen}")

    def answered_so_far_by_node(self) -> dict[str, bool]:
        return {name: name not in self._silent for name in self._pool.nodes}

    def stop_and_show_findings(self) -> tuple[Finding, ...]:
        """Stop watching; return what happened to nodes, the first first, and say what was not said."""
        self.close()
        self._thread.join()
        self._look()  # the head may have ended a moment ago, and be why this is asked
        findings = sort_failure_findings(self._failures.values())
        if not self._silent:
            with contextlib.suppress(RlboxError):
                probe = self._context.probe()
                cluster = self._context.find_largest_own_cluster(probe) or self._cluster
                findings = find_status(self._context, probe, cluster).failures
        self._show(findings)
        return findings

    def stop_and_explain(self, error: RlboxError) -> str:
        lines = [f"\n  {one.where}: {one.title}: {one.seen}" for one in self.stop_and_show_findings()]
        return "".join([error.what, *lines])

    def close(self) -> None:
        self._closed.set()
