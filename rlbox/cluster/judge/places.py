"""Judge where a target was brought to nodes whose Ray is processes, for they have no engine."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.cluster.facts import NodePlace
from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.survey import Survey
from rlbox.findings import Finding

_SHOWN = 12


def judge_places(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what keeps Ray from running as processes, on the nodes where it is to."""
    for name, facts in survey.facts.items():
        if survey.here(name):
            yield from place_problems(name, facts.place, survey.wish(name).data, needs)


def place_problems(name: str, place: NodePlace | None, data: str, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is wrong with the place of one node, whose data disk is `data`."""
    apply = f"rlbox apply {needs.target} --data {data}"
    if place is None:
        yield Finding(
            id="place-missing",
            title=f"target {needs.target} was not brought to it, and Ray is to run there without an engine",
            where=name,
            remedy=f"{apply}, there",
        )
        return
    if not place.whole:
        yield Finding(
            id="place-torn",
            title=f"target {needs.target} was not wholly brought to it",
            seen=place.own,
            where=name,
            remedy=f"{apply}, there",
        )
    elif place.lock != needs.lock:
        yield Finding(
            id="place-differs",
            title=f"it is at another lock of target {needs.target} than this machine has",
            seen=f"{place.lock[:_SHOWN]}, here {needs.lock[:_SHOWN]}",
            where=name,
            remedy=f"bring this project there, then {apply}",
        )
    there = needs.mount if place.image else place.data
    if there != data:
        yield Finding(
            id="place-disk",
            title=f"target {needs.target} was brought to it for another data disk",
            seen=there,
            where=name,
            remedy=f"--data {there}, or {apply} there",
        )
