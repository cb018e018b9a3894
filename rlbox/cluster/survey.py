"""All that is known of the nodes before anything starts, and the questions to them."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.facts import NodeFacts, read_facts
from rlbox.cluster.fleet import Fleet
from rlbox.cluster.nodes import NodeSpec
from rlbox.cluster.plan import ClusterPlan, PortPlan, choose_ports, folder_of, own_plan, plan_of_labels
from rlbox.cluster.ray_runtime import RECORD_FILE
from rlbox.image.plan import ImagePlan


@dataclass(frozen=True, kw_only=True)
class Way:
    """A connection that one node tried to another: `said` is what was wrong, empty where it came through."""

    source: str
    goal: str
    address: str
    port: int
    said: str


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a node is for the others: its address, the interface and MTU of the route between them."""

    address: str
    interface: str
    mtu: int
    speed: int = 0


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The nodes as they were asked for and as they are, in order, the head first.

    `offsets` are seconds that a node's clock is ahead of this machine's. `seats` lacks the nodes that the others did
    not reach at any address; `ways` are the connections that were tried: to find addresses, then to the ports.
    `taken` are ports that could not be had, by node, with the holder. `routes` are the addresses of a node from which
    its kernel would send to addresses of the others, in their order.
    """

    wishes: tuple[NodeSpec, ...]
    facts: Mapping[str, NodeFacts]
    offsets: Mapping[str, float]
    seats: Mapping[str, Seat] = field(default_factory=dict)
    ways: tuple[Way, ...] = ()
    ports: PortPlan | None = None
    taken: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """Name of the first node."""
        return self.wishes[0].name

    def options(self, name: str) -> NodeSpec:
        """Return what was asked of a node."""
        return next(options for options in self.wishes if options.name == name)

    def here(self, name: str) -> bool:
        """Whether a node's Ray is to be processes: as asked, or it has no engine, and the target was brought to it."""
        facts = self.facts[name]
        return self.options(name).here or (facts.engine.state == "absent" and facts.place is not None)

    def skew(self, name: str) -> float:
        """Return how far a node's clock is from the middle of all, in seconds."""
        return self.offsets[name] - statistics.median_low(list(self.offsets.values()))


def candidates(survey: Survey, name: str) -> tuple[str, ...]:
    """Return the addresses at which a node may be, the likeliest first.

    What is asked for; what its name says, where the node has that address itself (one of a router in front of it, or a
    loopback one of its own list of hosts, is none that its programs can use); then those on the routes to the other
    nodes, be they of a bridge; then its own. `local` is no name in a network: there the routes come first.
    """
    options, facts = survey.options(name), survey.facts[name]
    if options.address:
        return (options.address,)
    own = [one.address for one in facts.usable]
    told = [] if options.local else [name.rpartition("@")[2]]
    said = [ip for word in told for other in survey.facts.values() for ip in other.names.get(word, ())]
    return tuple(dict.fromkeys([*(ip for ip in said if ip in own), *survey.routes.get(name, ()), *own]))


def goals_of(survey: Survey, name: str) -> tuple[str, ...]:
    """Return the addresses of the other nodes, to which a node is asked its routes; none that it has itself."""
    own = {one.address for one in survey.facts[name].addresses}
    others = [one.address for other, facts in survey.facts.items() if other != name for one in facts.usable]
    return tuple(dict.fromkeys(ip for ip in others if ip not in own))


def askers(names: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the nodes that try to reach a node: all of a few; of many the head, its two neighbours, and from the head.

    With many, every pair would be thousands of connections that say the same.
    """
    others = [other for other in names if other != name]
    if len(names) <= 8 or name == names[0]:
        return tuple(others)
    at = names.index(name)
    return tuple(dict.fromkeys((names[0], names[at - 1], names[(at + 1) % len(names)])))


def choose_seats(survey: Survey, ways: Sequence[Way]) -> dict[str, Seat]:
    """Return where each node is: the first of its candidates at which everybody who asked reached it."""
    found = {}
    names = [options.name for options in survey.wishes if options.name in survey.facts]
    for name in names:
        for address in candidates(survey, name):
            tried = [way for way in ways if (way.goal, way.address) == (name, address)]
            if len(names) > 1 and (not tried or any(way.said for way in tried)):
                continue
            one = survey.facts[name].interface_of(address)
            if one or survey.options(name).address:
                found[name] = Seat(
                    address=address,
                    interface=one.interface if one else "",
                    mtu=one.mtu if one else 0,
                    speed=one.speed if one else 0,
                )
                break
    return found


_CLOCK_TRIES = 3
_FACTS_S = 120.0


def probe_nodes(
    fleet: Fleet, wishes: Sequence[NodeSpec], image: ImagePlan, name: str, paths: Sequence[str] = ()
) -> Survey:
    """Return what every node that is connected says of itself, and how its clock goes."""
    known = tuple(options for options in wishes if options.name in fleet.links)
    names = [options.name.rpartition("@")[2] for options in known]

    def ask(link: NodeConnection) -> tuple[dict[str, Any], float]:
        row = link.ask(
            "facts",
            timeout_s=_FACTS_S,
            names=names,
            image=image.tag,
            target=image.target,
            disk=link.options.data,
            record=f"{folder_of(int(link.facts['uid']), name, link.name)}/{RECORD_FILE}",
            paths=list(paths),
        )
        return row, _offset(link)

    found = fleet.each(ask)
    return Survey(
        wishes=known,
        facts={name: read_facts(name, row) for name, (row, _) in found.items()},
        offsets={name: offset for name, (_, offset) in found.items()},
    )


def _offset(link: NodeConnection) -> float:
    """Return how many seconds a node's clock is ahead: of the quickest of a few answers, half of its way taken off."""
    best = (float("inf"), 0.0)
    for _ in range(_CLOCK_TRIES):
        began = time.time()
        there = float(link.ask("clock")["clock"])
        ended = time.time()
        best = min(best, (ended - began, there - (began + ended) / 2))
    return best[1]


def other_plans(survey: Survey, name: str) -> tuple[ClusterPlan, ...]:
    """Return the clusters on the nodes besides those of this name and user."""
    found = {}
    for facts in survey.facts.values():
        for one in facts.clusters:
            plan = plan_of_labels(one.labels)
            if plan and own_plan(one.labels, name, facts.uid) is None:
                found[plan.id] = plan
    return tuple(found.values())


def probe_ways(fleet: Fleet, survey: Survey) -> Survey:
    """Return the survey with the place of every node in the network that they have in common."""
    if len(survey.wishes) < 2:
        return replace(survey, seats=choose_seats(survey, ()))
    survey = replace(survey, routes=_routes(fleet, survey))
    word = secrets.token_hex(8)
    opened = fleet.each(lambda link: {f: _open(link, [0], word, f)["open"] for f in ("4", "6")})
    goals: dict[str, list[tuple[str, str, int]]] = {name: [] for name in fleet.links}
    names = [options.name for options in survey.wishes]
    for goal in names:
        for address in candidates(survey, goal):
            ports = opened[goal]["6" if ":" in address else "4"]
            for source in askers(names, goal) if ports else ():
                goals[source].append((goal, address, ports[0]))
    ways = _reach(fleet, goals, word)
    fleet.ask("quiet")
    return replace(survey, seats=choose_seats(survey, ways), ways=ways)


def _routes(fleet: Fleet, survey: Survey) -> dict[str, tuple[str, ...]]:
    told = fleet.each(lambda link: link.ask("routes", goals=list(goals_of(survey, link.name)))["sources"])
    return {name: tuple(map(str, sources)) for name, sources in told.items()}


def _open(link: NodeConnection, ports: Sequence[int], word: str, family: str) -> dict[str, Any]:
    return link.ask("listen", ports=list(ports), word=word, family=family)


def _reach(fleet: Fleet, goals: dict[str, list[tuple[str, str, int]]], word: str) -> tuple[Way, ...]:
    def ask(link: NodeConnection) -> list[Way]:
        rows = goals[link.name]
        told = link.ask("reach", goals=[(address, port) for _, address, port in rows], word=word)["reached"]
        return [
            Way(source=link.name, goal=goal, address=address, port=port, said=str(row["said"]))
            for (goal, address, port), row in zip(rows, told, strict=True)
        ]

    return tuple(way for ways in fleet.each(ask).values() for way in ways)


def plan_ports(survey: Survey, name: str, base: int, first: int) -> PortPlan:
    """Return the ports of a new cluster: none that somebody listens on, or another cluster there has."""
    listening = {one.port for facts in survey.facts.values() for one in facts.listening}
    return choose_ports(listening, [plan.ports for plan in other_plans(survey, name)], base, first)


def probe_ports(fleet: Fleet, survey: Survey, ports: PortPlan) -> Survey:
    """Return the survey with what of the ports is taken, and which of them let the other nodes in."""
    word, names = secrets.token_hex(8), list(survey.seats)
    wanted = {name: _ports_of(ports, name == survey.head) for name in names}

    def listen(link: NodeConnection) -> dict[int, str]:
        if link.name not in wanted:
            return {}
        taken = _open(link, wanted[link.name], word, "4")["taken"]
        return {int(port): str(who) for port, who in taken.items()}

    taken = fleet.each(listen)
    goals: dict[str, list[tuple[str, str, int]]] = {name: [] for name in fleet.links}
    for goal in names:
        open_ports = [port for port in ports.reached(head=goal == survey.head) if port not in taken[goal]]
        for source in askers(names, goal):
            goals[source] += [(goal, survey.seats[goal].address, port) for port in open_ports]
    ways = _reach(fleet, goals, word) if len(names) > 1 else ()
    fleet.ask("quiet")
    return replace(survey, ports=ports, taken=taken, ways=(*survey.ways, *ways))


def _ports_of(ports: PortPlan, head: bool) -> list[int]:
    return sorted({*ports.listened(head=head).values(), *ports.reached(head=head)})
