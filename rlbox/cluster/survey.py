"""All that is known of the nodes before anything starts, and where each of them would be in the cluster."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.nodes import NodeWish
from rlbox.cluster.ports import PortPlan


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

    wishes: tuple[NodeWish, ...]
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

    def wish(self, name: str) -> NodeWish:
        """Return what was asked of a node."""
        return next(wish for wish in self.wishes if wish.name == name)

    def here(self, name: str) -> bool:
        """Whether a node's Ray is to be processes: as asked, or it has no engine, and the target was brought to it."""
        facts = self.facts[name]
        return self.wish(name).here or (facts.engine.state == "absent" and facts.place is not None)

    def skew(self, name: str) -> float:
        """Return how far a node's clock is from the middle of all, in seconds."""
        return self.offsets[name] - statistics.median_low(list(self.offsets.values()))


def candidates(survey: Survey, name: str) -> tuple[str, ...]:
    """Return the addresses at which a node may be, the likeliest first.

    What is asked for; what its name says, where the node has that address itself (one of a router in front of it, or a
    loopback one of its own list of hosts, is none that its programs can use); then those on the routes to the other
    nodes, be they of a bridge; then its own. `local` is no name in a network: there the routes come first.
    """
    wish, facts = survey.wish(name), survey.facts[name]
    if wish.address:
        return (wish.address,)
    own = [one.address for one in facts.usable]
    told = [] if wish.local else [name.rpartition("@")[2]]
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
    names = [wish.name for wish in survey.wishes if wish.name in survey.facts]
    for name in names:
        for address in candidates(survey, name):
            tried = [way for way in ways if (way.goal, way.address) == (name, address)]
            if len(names) > 1 and (not tried or any(way.said for way in tried)):
                continue
            one = survey.facts[name].interface_of(address)
            if one or survey.wish(name).address:
                found[name] = Seat(
                    address=address,
                    interface=one.interface if one else "",
                    mtu=one.mtu if one else 0,
                    speed=one.speed if one else 0,
                )
                break
    return found
