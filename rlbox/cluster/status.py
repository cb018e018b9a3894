"""The state of a cluster and what happened to its nodes, asked once, or watched while something runs on it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from rlbox.amounts import columns, decimal_size_text
from rlbox.app import App
from rlbox.cluster.checks import format_findings
from rlbox.cluster.connection import Node, NodePool, UnreachableNode
from rlbox.cluster.context import (
    ClusterContext,
    ClusterProbe,
    ConnectionAttempt,
    Endpoint,
    ExistingCluster,
    attempt_connections,
    open_context,
    probe_instances,
)
from rlbox.cluster.node.facts import DiskFacts, RayInstance
from rlbox.cluster.nodes import LOCAL, ClusterOptions
from rlbox.cluster.plan import ClusterPlan, plan_of_labels
from rlbox.cluster.runtime import RayState, find_member_faults, query_ray_nodes, role_of
from rlbox.errors import NodeError, RlboxError
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
    """One node: `container` as its engine has it, or as its processes are where it has none (`is_inplace`).

    `missing` is what Ray lacks of it, `store` and `disk_free` in bytes.
    """

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

    def as_row(self) -> tuple[str, ...]:
        return (
            self.name,
            f"{self.role}, no engine" if self.is_inplace else self.role,
            self.address,
            self.container,
            self.missing or "alive",
            f"{self.gpus_used:g}/{self.gpus}",
            decimal_size_text(self.store) if self.store else "-",
            decimal_size_text(self.disk_free) if self.disk_free else "-",
        )


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """A cluster and its nodes; `ray_error` is why Ray could not be asked.

    `failures` are what happened to nodes, the first first.
    """

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
        return "\n".join(
            [head, closed, dashboard, *columns([_HEADER, *(one.as_row() for one in self.nodes)]), *failures]
        )


def create_status(
    plan: ClusterPlan, state: RayState, container_states: Mapping[str, str], disk_free_bytes: Mapping[str, int]
) -> ClusterStatus:
    """Return how a cluster is: `container_states` as engines say where nodes answer, both by node."""
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
    """What happened to a node: `since` in seconds since 1970, None where nothing tells.

    `is_consequence`: it is what happens to a node when another one ends.
    """

    node: str
    id: str
    title: str
    seen: str
    since: float | None = None
    is_consequence: bool = False


def find_member_failures(members: Iterable[MemberFacts]) -> list[Failure]:
    """Return what happened, the first first: what has a cause of its own before what ends when others do, then by time.

    A machine that does not answer has no time of its own; it stands before what ended after it without a cause.
    """
    return sort_failures(failure for member in members if (failure := _find_failure(member)))


def sort_failures(failures: Iterable[Failure]) -> list[Failure]:
    return sorted(failures, key=lambda one: (one.is_consequence, one.since or 0.0))


def format_failure_findings(
    failures: Sequence[Failure], remedy_by_node: Mapping[str, str], default_remedy: str
) -> tuple[Finding, ...]:
    """Return failures as findings; of several the first says so."""
    several = len(failures) > 1 and not all(one.is_consequence for one in failures)
    findings = []
    for number, one in enumerate(failures):
        at = "" if one.since is None else f"since {datetime.fromtimestamp(one.since, timezone.utc):%H:%M:%S} UTC"
        seen = ", ".join(filter(None, (one.seen, at, "it failed first" if several and number == 0 else "")))
        remedy = remedy_by_node.get(one.node, default_remedy)
        findings.append(Finding(id=one.id, title=one.title, seen=seen, where=one.node, remedy=remedy))
    return tuple(findings)


def _find_failure(member: MemberFacts) -> Failure | None:
    name, instance, disk = member.name, member.instance, member.disk
    if member.unreached:
        return _explain_silence(member)
    if instance is None:
        title = _("its container was removed, or the record of its processes")
        return Failure(name, "container-gone", title, "")
    if not instance.is_running:
        return _explain_end(member, instance)
    if disk and disk.is_full:
        return Failure(name, "disk-full", _("its data disk is full"), _format_space(disk))
    if member.missing:
        title = _("its Ray runs, and the head does not have it: its way to the head is cut, or it hangs")
        return Failure(name, "cut-off", title, member.missing, is_consequence=True)
    return None


def _explain_silence(member: MemberFacts) -> Failure:
    """Return whether it is our connection or the machine: others have tried, and one that refuses is there."""
    name, seen = member.name, member.unreached
    for attempt in member.attempts:
        if not attempt.error or "refused" in attempt.error:
            title = _("this machine does not reach it, {source} does: the cluster lives on")
            return Failure(name, "connection-cut", title.format(source=attempt.source), seen, is_consequence=True)
    if member.attempts:
        title = _("neither this machine nor the other nodes reach it: it is off, or its cable is cut")
        return Failure(name, "host-gone", title, seen)
    return Failure(name, "host-unknown", _("this machine does not reach it"), seen)


def _explain_end(member: MemberFacts, instance: RayInstance) -> Failure:
    """Return why Ray has ended, by what its engine, its machine and Ray say; the first rule that holds counts."""
    killed = _("its Ray was killed") if instance.is_inplace else _("its container was killed")
    ended = _("its Ray ended") if instance.is_inplace else _("Ray ended in its container")
    restarted = _("its machine was restarted: a reboot, or its power was cut")
    part, __, part_code = instance.first_ended_part.partition(" ")
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
    seen = ", ".join(filter(None, (f"exit code {instance.exit_code}", seen)))
    since = _parse_time(instance.finished, member.clock_offset_s)
    return Failure(member.name, id_, title, seen, since, is_consequence=id_ in ("ray-ended", "cut-off"))


def _format_space(disk: DiskFacts) -> str:
    return _("{path}: {free} of {size} free").format(
        path=disk.path, free=decimal_size_text(disk.free), size=decimal_size_text(disk.size)
    )


def _parse_time(text: str, clock_offset_s: float) -> float | None:
    """Return the time that an engine wrote, by this machine's clock; None where it is none."""
    seconds, __, part = text.rstrip("Z").partition(".")
    try:
        at = datetime.strptime(f"{seconds}.{part[:6] or 0} +0000", "%Y-%m-%dT%H:%M:%S.%f %z")
    except ValueError:
        return None
    return at.timestamp() - clock_offset_s if at.year > 1 else None


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
    back = f"rlbox cluster up {context.options.option_text} brings back what died"
    members = _list_member_facts(context, probe, cluster, state)
    failures = format_failure_findings(find_member_failures(members), remedies, back)
    return dataclasses.replace(create_status(plan, state, containers, disks), failures=failures)


def _format_instance(one: RayInstance | None) -> str:
    if one is None:
        return "gone"
    return one.status if one.is_running else f"{one.status} ({one.exit_code}{', out of memory' if one.oom else ''})"


def require_healthy(context: ClusterContext, probe: ClusterProbe, cluster: ExistingCluster) -> None:
    """Refuse a cluster that lacks nodes, for which work would wait."""
    status = find_status(context, probe, cluster)
    if not status.healthy:
        raise NodeError(
            _("cluster {plan} is not as it should be\n{table}").format(
                plan=status.plan.name, table=format_findings(status.failures)
            ),
            next_step=_("rlbox cluster up {words} brings back what died").format(words=context.options.option_text),
        )


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
            is_restarted=bool(facts and started_on and started_on != facts.machine.identity),
            clock_offset_s=probe.clock_offsets_s.get(member.name, 0.0),
        )


def _connect_from_others(pool: NodePool, plan: ClusterPlan, unreached: Sequence[str]) -> tuple[ConnectionAttempt, ...]:
    """Return how the other nodes reach those that are not heard of: at sshd's usual port, and at Ray's."""
    ports = (_SSH_PORT, plan.ports.of("node-manager"))
    endpoints = [
        Endpoint(one.name, one.address, port) for one in plan.members if one.name in unreached for port in ports
    ]
    sources = [name for name, node in pool.nodes.items() if not node.is_lost and name not in unreached]
    return attempt_connections(pool, dict.fromkeys(sources, endpoints))


class NodeMonitor:
    """Says what happens to nodes as it does, each thing once, until it is closed: long before Ray reports it."""

    def __init__(self, context: ClusterContext, cluster: ExistingCluster, clock_offsets_s: Mapping[str, float]) -> None:
        self._context, self._cluster, self._clock_offsets_s = context, cluster, clock_offsets_s
        self._pool = context.pool.select_skipping_unconnected(list(cluster.instances))
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
                    self._show(format_failure_findings([failure], {}, ""))

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

    def _explain_silence(self, name: str, said: str) -> list[Failure]:
        failures: list[Failure] = []
        for pause in (_SETTLE_S, 0.0):
            attempts = _connect_from_others(self._context.pool, self._cluster.plan, [name])
            failures = find_member_failures([MemberFacts(name, unreached=said, attempts=attempts)])
            if failures[0].id != "connection-cut" or self._closed.wait(pause):
                break
        return failures

    def _show(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            if (one.where, one.id) not in self._shown:
                self._shown.add((one.where, one.id))
                self._context.app.print_status(f"{one.where}: {one.title}: {one.seen}")

    def get_liveness_by_node(self) -> dict[str, bool]:
        return {name: name not in self._silent for name in self._pool.nodes}

    def probe_and_list_findings(self) -> tuple[Finding, ...]:
        """Return what happened to nodes, the first first, and say what was not said."""
        self._look()  # the head may have ended a moment ago, and be why this is asked
        findings = format_failure_findings(sort_failures(self._failures.values()), {}, "")
        if not self._silent:
            with contextlib.suppress(RlboxError):
                probe = self._context.probe()
                cluster = self._context.find_largest_own_cluster(probe) or self._cluster
                findings = find_status(self._context, probe, cluster).failures
        self._show(findings)
        return findings

    def explain(self, error: RlboxError) -> str:
        """Return what an error says, with what happened to nodes behind it."""
        lines = [f"\n  {one.where}: {one.title}: {one.seen}" for one in self.probe_and_list_findings()]
        return "".join([error.what, *lines])

    def close(self) -> None:
        self._closed.set()
