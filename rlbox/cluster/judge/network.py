"""Judge the ways between the nodes: addresses, names, ports, MTU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.survey import Survey, Way, candidates
from rlbox.findings import Finding, listed
from rlbox.i18n import _


def judge_addresses(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield nodes that the others reach at no address, or at one that Ray cannot use."""
    for name, facts in survey.facts.items():
        seat = survey.seats.get(name)
        if seat is None:
            tried = candidates(survey, name)
            said = sorted({f"{way.source}: {way.said}" for way in survey.ways if way.goal == name and way.said})
            yield Finding(
                id="no-way",
                title=_("the other nodes do not reach it"),
                seen=_("at {listed}: {listed2}").format(listed=listed(tried) or _("no address"), listed2=listed(said))
                if said
                else _("at {listed}").format(listed=listed(tried)),
                where=name,
                remedy=_("open the way between the nodes, or name its address: cluster.nodes with address"),
                breaks=("ports-closed", "mtu-differs"),
            )
        elif ":" in seat.address:
            yield Finding(
                id="ipv6-alone",
                title=_("the other nodes reach it by IPv6 alone, which Ray does not take between machines"),
                seen=seat.address,
                where=name,
                remedy=_("give the nodes addresses of IPv4 for each other, and name them: cluster.nodes with address"),
            )
        own = facts.names.get(facts.host, ())
        if own and all(ip.startswith("127.") or ip == "::1" for ip in own):
            yield Finding(
                id="name-is-loopback",
                title=_("its own name is a loopback address there; Ray and NCCL are told the right one"),
                level="note",
                seen=_("{host} is {own}").format(host=facts.host, own=", ".join(own)),
                where=name,
                remedy="",
            )


def judge_ports(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield ports of the plan that are taken, or that do not let another node in."""
    for name, taken in survey.taken.items():
        if taken:
            yield Finding(
                id="ports-taken",
                title=_("ports of the cluster are taken there"),
                seen=listed([f"{port} by {holder}" for port, holder in sorted(taken.items())]),
                where=name,
                remedy=_("--port N: the first of 20 others, or end what has them if it is yours"),
            )
    if survey.ports is None:
        return
    closed: dict[tuple[str, str], list[Way]] = defaultdict(list)
    for way in survey.ways:
        if way.said and way.port in survey.ports.all() and way.port not in survey.taken.get(way.goal, {}):
            closed[way.source, way.goal].append(way)
    for (source, goal), ways in closed.items():
        yield Finding(
            id="ports-closed",
            title=_("{source} does not reach ports of it").format(source=source),
            seen=f"{listed([str(way.port) for way in ways], most=6)}: {ways[0].said}",
            where=goal,
            remedy=_("let {source} through in its firewall: {span}").format(source=source, span=_span(survey, goal)),
        )


def _span(survey: Survey, goal: str) -> str:
    """Return the ports of the cluster on a node, and those that its kernel gives to who asks for none, as NCCL does."""
    ports, (first, last) = survey.ports, survey.facts[goal].ephemeral
    return f"{ports.base}-{ports.base + 19}, {ports.workers}-{ports.worker_range[1]}, {first}-{last}" if ports else ""


def judge_routes(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield interfaces whose packets are of another size than the others': large ones are lost between them."""
    sizes = {name: seat.mtu for name, seat in survey.seats.items() if seat.mtu}
    if len(set(sizes.values())) < 2:
        return
    most = max(sizes.values(), key=lambda size: (list(sizes.values()).count(size), size))
    for name, mtu in sizes.items():
        if mtu != most:
            seat = survey.seats[name]
            yield Finding(
                id="mtu-differs",
                title=_("packets of its interface have another size than those of the other nodes"),
                level="warning",
                seen=_("{interface}: MTU {mtu}, there {most}").format(interface=seat.interface, mtu=mtu, most=most),
                where=name,
                remedy=_("ip link set {interface} mtu {most} there").format(interface=seat.interface, most=most),
            )
