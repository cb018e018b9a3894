"""Nodes of a cluster over ssh, or this machine: what is called there, what they are, and what clusters they have."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from rlbox.amounts import exact_duration_text
from rlbox.app import App
from rlbox.cluster.node.facts import DiskFacts, InterfaceAddress, MachineFacts, NodeFacts, RayInstance
from rlbox.cluster.plan import (
    LOCAL,
    NODE_LABEL,
    ClusterOptions,
    ClusterPlan,
    PortPlan,
    adapter,
    choose_ports,
    own_plan,
    plan_of_labels,
    resolve_cluster_name,
    resolve_node_specs,
)
from rlbox.errors import EngineError, LockHeld, MachineError, RlboxError, SpecError
from rlbox.findings import Finding
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _, join
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.ssh.connection import (
    CONNECTION_LOST_CODE,
    SshAddress,
    SshClientMissing,
    SshConnection,
    SshConnectionFailed,
    explain_ssh_error,
)
from rlbox.system.command import DEVNULL, PIPE, ProcessHandle, start_command
from rlbox.target.target import ClusterNode, Target, load_target
from rlbox.values import Command

if TYPE_CHECKING:
    from rlbox.engine.docker import DockerEngine

T = TypeVar("T")

_CALL_S, _REPORT_S = 60.0, 120.0
_slots = threading.Semaphore(8)
"""An sshd takes 10 that have not logged in; all nodes may be behind one jump host."""
_OPTIONS = ("ConnectTimeout=30", "ServerAliveCountMax=6")
"""A node that is slow is no dead one."""

_MARK = b"rlbox:"
_BOOT = "import sys,json;exec(json.loads(sys.stdin.buffer.readline().decode()))"
_SCRIPT = ("facts.py", "calls.py")


@cache
def _node_script() -> bytes:
    """Return the script that a node's python3 runs as one line: its modules without their imports of rlbox."""
    folder = Path(__file__).with_name("node")
    text = "\n".join((folder / name).read_text("utf-8") for name in _SCRIPT)
    text = re.sub(r"^from rlbox\.\S+ import (\([^)]*\)|.*)$", "", text, flags=re.M)
    return json.dumps(text).encode() + b"\n"


class UnreachableNode(MachineError):
    def __init__(self, finding: Finding) -> None:
        super().__init__(join(": ", (finding.where, finding.title, finding.seen)), next_step=finding.remedy)
        self.finding = finding


class Node:
    """One node, from `connect` to `close`; several threads may call it at a time.

    `engine_url` is where this machine reaches the node's engine: its own socket, or one that ssh forwards.
    """

    machine: MachineFacts
    engine_url: str

    def __init__(self, spec: ClusterNode) -> None:
        self.spec, self.name = spec, spec.name
        self._ssh = None if spec.name == LOCAL else SshConnection(SshAddress(host=spec.name), o_options=_OPTIONS)

    def connect_forwarding_engine_socket(self) -> None:
        try:
            if self._ssh:
                with _slots:
                    self._ssh.__enter__()
            self.machine = MachineFacts(*self.call("read_user_and_memory_facts"))
        except (UnreachableNode, SshClientMissing):
            raise
        except MachineError as error:
            output = error.output if isinstance(error, SshConnectionFailed) else error.what
            raise UnreachableNode(explain_ssh_error(self.name, output)) from error
        path = self.machine.engine_socket
        if self._ssh:
            path = str(self._ssh.local_temp_directory / "engine")
            self._ssh.forward_socket(path, self.machine.engine_socket)
        self.engine_url = f"unix://{path}"

    def close(self) -> None:
        if self._ssh:
            self._ssh.__exit__()

    def _connection_lost(self) -> UnreachableNode:
        title, seen, remedy = _("the connection broke"), _("that ends nothing there"), _("the same command again")
        return UnreachableNode(Finding(id="connection-lost", title=title, seen=seen, where=self.name, remedy=remedy))

    def _argv(self, command: str) -> tuple[str, ...]:
        if self._ssh and not self._ssh.is_open:  # without its master, ssh would connect anew, and nobody would know
            raise self._connection_lost()
        return self._ssh.to_argv(command) if self._ssh else ("sh", "-c", command)

    def _start(self, function: str, arguments: Mapping[str, Any]) -> ProcessHandle:
        python = "python3" if self._ssh else sys.executable
        command = Command(argv=self._argv(f'{python} -I -S -c "{_BOOT}" rlbox-node'))
        process = start_command(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.write(_node_script() + json.dumps([function, arguments]).encode() + b"\n")
                process.stdin.flush()
        return process

    def call(self, function: str, timeout_s: float = _CALL_S, /, **arguments: Any) -> Any:
        """Return what a function of the node's script returns; `MachineError` where it fails, or not in time."""
        process = self._start(function, arguments)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with process:  # which does not read to the end: ssh's master holds the pipes while a link is cut
                process.kill()
            raise MachineError(
                _("node {name} has not answered for {timeout_s}").format(
                    name=self.name, timeout_s=exact_duration_text(timeout_s)
                ),
                where=self.name,
            ) from None
        return self._find_answer(output.splitlines(), process, errors)

    @contextmanager
    def hold(self, function: str, **arguments: Any) -> Iterator[Any]:
        """Yield what a function of the node's script yields; it holds that until the block ends."""
        process = self._start(function, arguments)
        try:
            yield self._find_answer(process.stdout or (), process)
        finally:
            process.communicate()

    def _find_answer(self, lines: Iterable[bytes], process: ProcessHandle, errors: bytes = b"") -> Any:
        row = next((parse_untrusted_json(line[len(_MARK) :]) for line in lines if line.startswith(_MARK)), None)
        if row is None and process.wait() == CONNECTION_LOST_CODE:
            raise self._connection_lost()
        if row is None or "error" in row:
            said = errors.decode("utf-8", "replace").strip() or "no answer"
            failed = row["error"] if row else said.splitlines()[-1]
            raise MachineError(
                _("node {name}: {failed}").format(name=self.name, failed=failed), next_step=_("the same command again")
            )
        return row["answer"]

    def run_shell(self, command: str, stdin: int | IO[bytes] = DEVNULL) -> str:
        process = start_command(Command(argv=self._argv(command)), stdin=stdin, stdout=PIPE, stderr=PIPE)
        output, errors = (stream.decode("utf-8", "replace") for stream in process.communicate())
        if process.returncode:
            lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
            raise MachineError(_("node {name}: {failed}").format(name=self.name, failed=lines[-1]), where=self.name)
        return output

    def connect_docker_engine(self) -> DockerEngine:
        from rlbox.engine.docker import DockerEngine

        try:
            return DockerEngine.connect(self.engine_url)
        except EngineError as error:
            output = self._ssh.read_master_stderr_or_empty() if self._ssh else ""
            if "prohibited" in output:
                raise UnreachableNode(explain_ssh_error(self.name, output)) from error
            raise EngineError(error.what, where=self.name, next_step=error.next_step) from error


# ---- all of them


class NodePool:
    def __init__(self, nodes: Mapping[str, Node], unreached: Sequence[Finding] = ()) -> None:
        self.nodes, self.unreached = dict(nodes), tuple(unreached)

    def select_skipping_unconnected(self, names: Iterable[str]) -> NodePool:
        return NodePool({name: self.nodes[name] for name in names if name in self.nodes})

    def map(self, function: Callable[[Node], T]) -> dict[str, T]:
        """Return what each node gave; the first error is raised when all are through."""
        results, errors = self.try_map(function)
        for error in errors.values():
            raise error
        return results

    def try_map(self, function: Callable[[Node], T]) -> tuple[dict[str, T], dict[str, RlboxError]]:
        results: dict[str, T] = {}
        errors: dict[str, RlboxError] = {}
        with ThreadPoolExecutor(max(1, len(self.nodes))) as pool:
            futures = {name: pool.submit(function, node) for name, node in self.nodes.items()}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except RlboxError as error:
                errors[name] = error
        return results, errors

    def format_unreached(self) -> list[str]:
        return [join(": ", (finding.where, finding.title, finding.seen)) for finding in self.unreached]


@contextmanager
def connect_nodes(specs: Sequence[ClusterNode]) -> Iterator[NodePool]:
    """Connect to all nodes at once, and hold the connections while the block runs; two names of one are refused."""
    nodes = {spec.name: Node(spec) for spec in specs}
    try:
        __, errors = NodePool(nodes).try_map(Node.connect_forwarding_engine_socket)
        unreached = [error.finding for error in errors.values() if isinstance(error, UnreachableNode)]
        if len(unreached) < len(errors):
            raise next(error for error in errors.values() if not isinstance(error, UnreachableNode))
        names: dict[str, str] = {}
        connected = {name: node for name, node in nodes.items() if name not in errors}
        for name, node in connected.items():
            first = names.setdefault(node.machine.identity_until_restart, name)
            if first != name:
                raise SpecError(
                    _("nodes {one} and {other} are one machine").format(one=first, other=name),
                    next_step=_("name each machine once, in --nodes or cluster.nodes"),
                )
        yield NodePool(connected, unreached)
    finally:
        for node in nodes.values():
            node.close()


@contextmanager
def hold_node_locks_raise_if_any_held(pool: NodePool) -> Iterator[None]:
    """Hold the lock of every node while the block runs: one after the other, in the same order for everybody."""
    with contextlib.ExitStack() as locks:
        for node in sorted(pool.nodes.values(), key=lambda node: node.machine.identity_until_restart):
            if not locks.enter_context(node.hold("hold_lock")):
                raise LockHeld(
                    _("another call changes clusters on node {node}").format(node=node.name),
                    where=node.name,
                    next_step=_("the same command again, once that has ended"),
                )
        yield


class ConnectionAttempt(NamedTuple):
    """A connection that `source` tried to another node: `error` is what was wrong, empty where it came through."""

    source: str
    node: str
    address: str
    port: int
    error: str


@dataclass(frozen=True, kw_only=True)
class ClusterProbe:
    """The nodes as they are, in order, the head first.

    `clock_offsets_s` are how far a node's clock is ahead of this machine's. On `inplace_nodes` Ray is to be processes.
    `addresses` are where nodes are for the others; `taken_ports` are ports that could not be had, by node, each with
    its holder.
    """

    facts: Mapping[str, NodeFacts]
    clock_offsets_s: Mapping[str, float]
    inplace_nodes: Set[str] = frozenset()
    addresses: Mapping[str, InterfaceAddress] = field(default_factory=dict)
    connection_attempts: tuple[ConnectionAttempt, ...] = ()
    ports: PortPlan | None = None
    taken_ports: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def runs_ray_without_container(spec: ClusterNode, facts: NodeFacts) -> bool:
    """Return whether Ray is to be processes there: as asked, or without an engine, where the target was installed."""
    return spec.here or (facts.engine.state == "absent" and facts.installation is not None)


def find_peer_addresses(specs: Sequence[ClusterNode], facts: Mapping[str, NodeFacts]) -> dict[str, InterfaceAddress]:
    """Return where each node is for the others: as the target says, else where ssh reaches it.

    A node that ssh reaches by a forwarded port or by IPv6 is at its first address of IPv4, this machine at that from
    which it would send to another node.
    """
    found: dict[str, InterfaceAddress] = {}
    for spec in specs:
        own = facts[spec.name]
        if spec.address:
            found[spec.name] = own.find_address(spec.address) or InterfaceAddress("", spec.address)
        elif own.addresses:
            found[spec.name] = own.addresses[0]
    others = [one.address for name, one in found.items() if name != LOCAL]
    if others and any(spec.name == LOCAL and not spec.address for spec in specs):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            route.connect((others[0], 9))
            if address := facts[LOCAL].find_address(route.getsockname()[0]):
                found[LOCAL] = address
    return found


def probe_nodes(pool: NodePool, target: str, paths: Sequence[str] = ()) -> ClusterProbe:
    specs = tuple(node.spec for node in pool.nodes.values())
    offsets: dict[str, float] = {}

    def ask(node: Node) -> NodeFacts:
        began = time.time()
        row = node.call("report_node", _REPORT_S, disk=node.spec.data, target=target, paths=list(paths))
        facts: NodeFacts = adapter(NodeFacts).validate_python(row)
        # what it could be ahead at most and at least, for it looked in between; what could be right is taken as right
        most, least = facts.own_clock_before_after_s[0] - began, facts.own_clock_before_after_s[1] - time.time()
        offsets[node.name] = max(least, min(most, 0.0))
        return facts

    facts = pool.map(ask)
    return ClusterProbe(
        facts=facts,
        clock_offsets_s=offsets,
        inplace_nodes={spec.name for spec in specs if runs_ray_without_container(spec, facts[spec.name])},
        addresses=find_peer_addresses(specs, facts),
    )


def probe_instances(
    node: Node, *, leave_out_containers: bool, timeout_s: float = _CALL_S
) -> tuple[DiskFacts, Sequence[RayInstance] | None]:
    """Return the node's data disk, and what runs, or ran, Ray there: None where its engine does not answer."""
    arguments = {"disk": node.spec.data, "leave_out_containers": leave_out_containers}
    disk, instances = node.call("report_instances", timeout_s, **arguments)
    return DiskFacts(*disk), instances and [RayInstance(*row) for row in instances]


def attempt_connections_from_nodes(
    pool: NodePool, sources: Iterable[str], endpoints: Sequence[tuple[str, str, int]]
) -> tuple[ConnectionAttempt, ...]:
    """Have each source try the endpoints, each node, address and port, of the other nodes."""

    def ask(node: Node) -> list[ConnectionAttempt]:
        others = [one for one in endpoints if one[0] != node.name]
        errors = node.call("attempt_connections", endpoints=[one[1:] for one in others])
        return [ConnectionAttempt(node.name, *one, error) for one, error in zip(others, errors, strict=True)]

    results, __ = pool.select_skipping_unconnected(sources).try_map(ask)
    return tuple(attempt for attempts in results.values() for attempt in attempts)


def choose_ports_and_probe_connections(context: ClusterContext, probe: ClusterProbe, forced_base: int) -> ClusterProbe:
    """Return the probe with a plan of ports, which of them are taken, and which of them let each other node in."""
    if not probe.facts:  # no node answered
        return probe
    listening = {port for facts in probe.facts.values() for port in facts.listening}
    others = [
        plan.ports
        for facts in probe.facts.values()
        for instance in facts.clusters
        if (plan := plan_of_labels(instance.labels))
        and own_plan(instance.labels, context.name, facts.machine.uid) is None
    ]
    ports = choose_ports(listening, others, forced_base)
    head = next(iter(probe.facts))
    tried = {name: ports.ports_to_try_from_others(head=name == head) for name in probe.addresses}
    with contextlib.ExitStack() as listeners:

        def listen(node: Node) -> dict[int, str]:
            wanted = sorted({*ports.listened(head=node.name == head), *tried[node.name]})
            holders = listeners.enter_context(node.hold("listen_and_find_holders", ports=wanted))
            return {int(port): str(holder) for port, holder in holders.items()}

        taken = context.pool.select_skipping_unconnected(tried).map(listen)
        endpoints = [
            (name, probe.addresses[name].address, port)
            for name in tried
            for port in tried[name]
            if port not in taken[name]
        ]
        attempts = attempt_connections_from_nodes(context.pool, tried, endpoints)
    return replace(probe, ports=ports, taken_ports=taken, connection_attempts=attempts)


# ---- a target and its clusters


class ExistingCluster(NamedTuple):
    """A cluster as it was found: `instances` are what runs, or ran, its Ray, by node."""

    context: ClusterContext
    probe: ClusterProbe
    plan: ClusterPlan
    instances: dict[str, RayInstance]

    def was_found_running_on(self, node: str) -> bool:
        instance = self.instances.get(node)
        return instance is not None and instance.has_not_ended

    def require_running_head(self) -> Node:
        """Return the head; `MachineError` where it does not answer or does not run."""
        head = self.plan.head.name
        if head not in self.context.pool.nodes:
            names = ",".join(member.name for member in self.plan.members)
            what, remedy = _("it is none of --nodes"), _("name it: --nodes {members}").format(members=names)
            if lost := next((one for one in self.context.pool.unreached if one.where == head), None):
                what, remedy = f"{lost.title}: {lost.seen}", lost.remedy
            text = _("the head of cluster {plan} cannot be reached: {what}").format(plan=self.plan.name, what=what)
            raise MachineError(text, where=head, next_step=remedy)
        if not self.was_found_running_on(head):
            raise MachineError(
                _("the head of cluster {plan} does not run").format(plan=self.plan.name),
                where=head,
                next_step=self.context.options.repair_hint_text,
            )
        return self.context.pool.nodes[head]


class ClusterContext:
    """A target with its nodes, connected; `pool` has those that answer."""

    def __init__(self, app: App, options: ClusterOptions, target: Target, name: str, pool: NodePool) -> None:
        self.app, self.options, self.target, self.name, self.pool = app, options, target, name, pool
        self.image: ImagePlan = load_image_plan(app.project, options.target)

    @property
    def ray_version_or_empty(self) -> str:
        """The version of Ray that the target has, empty where it is not known before its lock."""
        return map_packages_to_version_or_empty(self.target, self.image.lock).get("ray", "")

    def probe(self, paths: Sequence[str] = ()) -> ClusterProbe:
        return probe_nodes(self.pool, self.image.target, paths)

    def find_most_running_own_cluster(self, probe: ClusterProbe) -> ExistingCluster | None:
        """Return the cluster of this name and user, None where there is none; of several the one on most nodes."""
        clusters: dict[str, ExistingCluster] = {}
        for facts in probe.facts.values():
            for instance in facts.clusters:
                if plan := own_plan(instance.labels, self.name, facts.machine.uid):
                    cluster = clusters.setdefault(plan.id, ExistingCluster(self, probe, plan, {}))
                    cluster.instances[instance.labels[NODE_LABEL]] = instance

        def rank(cluster: ExistingCluster) -> tuple[int, str]:
            return sum(map(cluster.was_found_running_on, cluster.instances)), cluster.plan.id

        return max(clusters.values(), key=rank, default=None)

    def require_own_cluster(self, probe: ClusterProbe | None = None) -> ExistingCluster:
        probe = probe or self.probe()
        cluster = self.find_most_running_own_cluster(probe)
        if cluster is None:
            for line in self.pool.format_unreached():
                self.app.print_status(line)
            raise MachineError(
                _("there is no cluster {name} on {facts}").format(
                    name=self.name, facts=", ".join(probe.facts) or _("any node that answers")
                ),
                next_step=f"rlbox cluster up {self.options.target_and_options_text}",
            )
        return cluster


@contextmanager
def open_context(app: App, options: ClusterOptions) -> Iterator[ClusterContext]:
    target = load_target(app.project, options.target).target
    name = resolve_cluster_name(target, options.name)
    with connect_nodes(resolve_node_specs(target, options.nodes, options.data)) as pool:
        yield ClusterContext(app, options, target, name, pool)
