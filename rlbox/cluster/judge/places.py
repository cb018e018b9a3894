"""Judge where a target was brought to nodes whose Ray is processes, for they have no engine."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.cluster.facts import NodePlace
from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.survey import Survey
from rlbox.findings import Finding
from rlbox.i18n import _

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
            title=_("target {target} was not brought to it, and Ray is to run there without an engine").format(
                target=needs.target
            ),
            where=name,
            remedy=_("{apply}, there").format(apply=apply),
        )
        return
    if not place.whole:
        yield Finding(
            id="place-torn",
            title=_("target {target} was not wholly brought to it").format(target=needs.target),
            seen=place.own,
            where=name,
            remedy=_("{apply}, there").format(apply=apply),
        )
    elif place.lock != needs.lock:
        yield Finding(
            id="place-differs",
            title=_("it is at another lock of target {target} than this machine has").format(target=needs.target),
            seen=_("{lock}, here {lock2}").format(lock=place.lock[:_SHOWN], lock2=needs.lock[:_SHOWN]),
            where=name,
            remedy=_("bring this project there, then {apply}").format(apply=apply),
        )
    there = needs.mount if place.image else place.data
    if there != data:
        yield Finding(
            id="place-disk",
            title=_("target {target} was brought to it for another data disk").format(target=needs.target),
            seen=there,
            where=name,
            remedy=f"--data {there}, or {apply} there",
        )
