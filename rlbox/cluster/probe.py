"""Ask all nodes everything, then let them reach each other: the survey that the judges read."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlbox.cluster.facts import read_facts
from rlbox.cluster.nodes import NodeWish
from rlbox.cluster.plan import ClusterPlan, folder_of, own_plan, plan_of_labels
from rlbox.cluster.ports import PortPlan, choose_ports
from rlbox.cluster.ray import RECORD_FILE
from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.survey import Survey, Way, askers, candidates, choose_seats, goals_of
from rlbox.image.plan import ImagePlan

_CLOCK_TRIES = 3
_FACTS_S = 120.0


def probe_nodes(
    fleet: Fleet, wishes: Sequence[NodeWish], image: ImagePlan, name: str, paths: Sequence[str] = ()
) -> Survey:
    """Return what every node that is connected says of itself, and how its clock goes."""
    known = tuple(wish for wish in wishes if wish.name in fleet.links)
    names = [wish.name.rpartition("@")[2] for wish in known]

    def ask(link: NodeLink) -> tuple[dict[str, Any], float]:
        row = link.ask(
            "facts",
            timeout_s=_FACTS_S,
            names=names,
            image=image.tag,
            target=image.target,
            disk=link.wish.data,
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


def _offset(link: NodeLink) -> float:
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
    names = [wish.name for wish in survey.wishes]
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


def _open(link: NodeLink, ports: Sequence[int], word: str, family: str) -> dict[str, Any]:
    return link.ask("listen", ports=list(ports), word=word, family=family)


def _reach(fleet: Fleet, goals: dict[str, list[tuple[str, str, int]]], word: str) -> tuple[Way, ...]:
    def ask(link: NodeLink) -> list[Way]:
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

    def listen(link: NodeLink) -> dict[int, str]:
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
