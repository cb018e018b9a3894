"""Ask all nodes what they are, where they reach each other, and which ports are free."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rlbox.cluster.connection import Node, NodeStream
from rlbox.cluster.facts import NodeFacts, read_facts
from rlbox.cluster.nodes import NodeSpec
from rlbox.cluster.plan import ClusterPlan, PortPlan, choose_ports, cluster_directory, own_plan, plan_of_labels
from rlbox.cluster.pool import NodePool

RECORD_FILE = "cluster.json"
_CLOCK_TRIES = 3
_REPORT_S = 120.0
_REACH_S = 15.0
_FEW_NODES = 8


@dataclass(frozen=True, kw_only=True)
class ConnectionAttempt:
    """A connection that one node tried to another: `said` is what was wrong, empty where it came through."""

    source: str
    target: str
    address: str
    port: int
    said: str


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a node is for the others: its address, with the interface's MTU in bytes and speed in Mbit/s."""

    address: str
    interface: str
    mtu: int
    speed: int = 0


@dataclass(frozen=True, kw_only=True)
class ClusterProbe:
    """The nodes as they were asked for and as they are, in order, the head first.

    `offsets` are seconds that a node's clock is ahead of this machine's. `endpoints` lacks nodes that the others reach
    at no address; `attempts` are the connections that were tried. `taken` are ports that could not be had, by node,
    each with its holder. `routes` are the addresses of a node from which its kernel would send to the others.
    """

    specs: tuple[NodeSpec, ...]
    facts: Mapping[str, NodeFacts]
    offsets: Mapping[str, float]
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    attempts: tuple[ConnectionAttempt, ...] = ()
    ports: PortPlan | None = None
    taken: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return self.specs[0].name

    def spec(self, name: str) -> NodeSpec:
        return next(spec for spec in self.specs if spec.name == name)

    def is_inplace(self, name: str) -> bool:
        """Whether Ray is to be processes there: as asked, or it has no engine, and the target was installed there."""
        facts = self.facts[name]
        return self.spec(name).here or (facts.engine.state == "absent" and facts.installation is not None)

    def skew(self, name: str) -> float:
        """Return how far a node's clock is from the middle of all, in seconds."""
        return self.offsets[name] - statistics.median_low(list(self.offsets.values()))


def candidate_addresses(probe: ClusterProbe, name: str) -> tuple[str, ...]:
    """Return the addresses at which a node may be, the likeliest first.

    What is asked for; what its name says, where the node has that address itself; then those on the routes to the other
    nodes; then its own. `local` is no name in a network: there the routes come first.
    """
    spec, facts = probe.spec(name), probe.facts[name]
    if spec.address:
        return (spec.address,)
    own = [one.address for one in facts.reachable_addresses]
    host = "" if spec.is_local else name.rpartition("@")[2]
    named = [ip for other in probe.facts.values() for ip in other.names.get(host, ()) if ip in own]
    return tuple(dict.fromkeys([*named, *probe.routes.get(name, ()), *own]))


def list_probers(names: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the nodes that try to reach a node: all of a few; of many the head and its two neighbours.

    With many, every pair would be thousands of connections that say the same.
    """
    others = [other for other in names if other != name]
    if len(names) <= _FEW_NODES or name == names[0]:
        return tuple(others)
    index = names.index(name)
    return tuple(dict.fromkeys((names[0], names[index - 1], names[(index + 1) % len(names)])))


def choose_endpoints(probe: ClusterProbe, attempts: Sequence[ConnectionAttempt]) -> dict[str, Endpoint]:
    """Return where each node is: the first of its addresses at which everybody who tried reached it."""
    endpoints = {}
    names = [spec.name for spec in probe.specs if spec.name in probe.facts]
    for name in names:
        for address in candidate_addresses(probe, name):
            tried = [one for one in attempts if (one.target, one.address) == (name, address)]
            if len(names) > 1 and (not tried or any(one.said for one in tried)):
                continue
            own = probe.facts[name].find_address(address)
            if own or probe.spec(name).address:
                interface, mtu, speed = (own.interface, own.mtu, own.speed) if own else ("", 0, 0)
                endpoints[name] = Endpoint(address=address, interface=interface, mtu=mtu, speed=speed)
                break
    return endpoints


def list_other_plans(probe: ClusterProbe, name: str) -> tuple[ClusterPlan, ...]:
    """Return the clusters on the nodes besides those of this name and user."""
    plans = {}
    for facts in probe.facts.values():
        for instance in facts.clusters:
            plan = plan_of_labels(instance.labels)
            if plan and own_plan(instance.labels, name, facts.uid) is None:
                plans[plan.id] = plan
    return tuple(plans.values())


# ---- asking


def probe_nodes(
    pool: NodePool, specs: Sequence[NodeSpec], target: str, name: str, paths: Sequence[str] = ()
) -> ClusterProbe:
    """Return what every node that is connected says of itself, and how its clock goes."""
    known = tuple(spec for spec in specs if spec.name in pool.nodes)
    names = [spec.name.rpartition("@")[2] for spec in known]

    def ask(node: Node) -> tuple[NodeFacts, float]:
        record = f"{cluster_directory(int(node.machine['uid']), name, node.name)}/{RECORD_FILE}"
        row = node.call(
            "report", _REPORT_S, disk=node.spec.data, names=names, target=target, record=record, paths=list(paths)
        )
        return read_facts(node.name, row), measure_clock(node)

    results = pool.map(ask)
    return ClusterProbe(
        specs=known,
        facts={name: facts for name, (facts, _) in results.items()},
        offsets={name: offset for name, (_, offset) in results.items()},
    )


def measure_clock(node: Node) -> float:
    """Return how many seconds a node's clock is ahead: by the quickest of a few answers, half of its way taken off."""
    best = (float("inf"), 0.0)
    with contextlib.closing(node.stream("clock")) as stream:
        for _ in range(_CLOCK_TRIES):
            began = time.time()
            stream.send({})
            there = float(stream.next()["clock"])
            ended = time.time()
            best = min(best, (ended - began, there - (began + ended) / 2))
    return best[1]


@contextmanager
def _listening(
    pool: NodePool, ports: Mapping[str, Sequence[int]], word: str, family: str
) -> Iterator[Mapping[str, dict[str, Any]]]:
    """Have nodes listen while the block runs; yield what each says of its ports."""
    streams: dict[str, NodeStream] = {}

    def start(node: Node) -> dict[str, Any]:
        streams[node.name] = node.stream("listen", ports=list(ports[node.name]), word=word, family=family)
        return streams[node.name].next()

    try:
        yield pool.select([name for name in pool.nodes if name in ports]).map(start)
    finally:
        for stream in streams.values():
            stream.close()


def try_connections(
    pool: NodePool, targets: Mapping[str, Sequence[tuple[str, str, int]]], word: str
) -> tuple[ConnectionAttempt, ...]:
    """Have nodes connect to others; `targets` are, by source, node, address and port of each."""

    def ask(node: Node) -> list[ConnectionAttempt]:
        rows = targets.get(node.name, ())
        if not rows:
            return []
        answers = node.call("reach", _REACH_S, targets=[(address, port) for _, address, port in rows], word=word)[
            "said"
        ]
        return [
            ConnectionAttempt(source=node.name, target=target, address=address, port=port, said=str(said))
            for (target, address, port), said in zip(rows, answers, strict=True)
        ]

    results, _ = pool.try_map(ask)
    return tuple(attempt for attempts in results.values() for attempt in attempts)


def probe_endpoints(pool: NodePool, probe: ClusterProbe) -> ClusterProbe:
    """Return the probe with the place of every node in the network that they have in common."""
    names = [spec.name for spec in probe.specs]
    if len(names) < 2:
        return replace(probe, endpoints=choose_endpoints(probe, ()))
    probe = replace(probe, routes=pool.map(lambda node: _ask_routes(node, probe)))
    word = secrets.token_hex(8)
    any_port = dict.fromkeys(names, (0,))
    with _listening(pool, any_port, word, "4") as four, _listening(pool, any_port, word, "6") as six:
        targets: dict[str, list[tuple[str, str, int]]] = {name: [] for name in names}
        for target in names:
            for address in candidate_addresses(probe, target):
                ports = (six if ":" in address else four)[target]["open"]
                for source in list_probers(names, target) if ports else ():
                    targets[source].append((target, address, ports[0]))
        attempts = try_connections(pool, targets, word)
    return replace(probe, endpoints=choose_endpoints(probe, attempts), attempts=attempts)


def _ask_routes(node: Node, probe: ClusterProbe) -> tuple[str, ...]:
    own = {one.address for one in probe.facts[node.name].addresses}
    others = [facts for name, facts in probe.facts.items() if name != node.name]
    targets = [one.address for facts in others for one in facts.reachable_addresses if one.address not in own]
    return tuple(node.call("routes", targets=list(dict.fromkeys(targets)))["sources"])


def plan_ports(probe: ClusterProbe, name: str, base: int, first: int) -> PortPlan:
    """Return the ports of a new cluster: none that somebody listens on, or another cluster there has."""
    listening = {one.port for facts in probe.facts.values() for one in facts.listening}
    return choose_ports(listening, [plan.ports for plan in list_other_plans(probe, name)], base, first)


def probe_ports(pool: NodePool, probe: ClusterProbe, ports: PortPlan) -> ClusterProbe:
    """Return the probe with which ports of the plan are taken, and which of them let the other nodes in."""
    word, names = secrets.token_hex(8), list(probe.endpoints)
    wanted = {
        name: sorted({*ports.listened(head=name == probe.head).values(), *ports.reached(head=name == probe.head)})
        for name in names
    }
    with _listening(pool, wanted, word, "4") as reports:
        taken = {name: {int(port): str(who) for port, who in row["taken"].items()} for name, row in reports.items()}
        targets: dict[str, list[tuple[str, str, int]]] = {name: [] for name in names}
        for target in names:
            free = [port for port in ports.reached(head=target == probe.head) if port not in taken[target]]
            for source in list_probers(names, target):
                targets[source] += [(target, probe.endpoints[target].address, port) for port in free]
        attempts = try_connections(pool, targets, word) if len(names) > 1 else ()
    return replace(probe, ports=ports, taken=taken, attempts=(*probe.attempts, *attempts))
