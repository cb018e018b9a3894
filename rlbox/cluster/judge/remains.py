"""Judge what earlier clusters left on the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.labels import CLUSTER_LABEL, MAKER_LABEL
from rlbox.cluster.survey import Survey
from rlbox.engine.container import TARGET_LABEL
from rlbox.findings import Finding, listed
from rlbox.i18n import _


def judge_remains(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield containers of other clusters that have ended and were never taken away, with their owner."""
    for name, facts in survey.facts.items():
        dead = [one for one in facts.clusters if not one.going and one.labels.get(CLUSTER_LABEL) != needs.cluster]
        if dead:
            yield Finding(
                id="remains",
                title=_("containers of earlier clusters lie there"),
                level="warning",
                seen=listed([f"{one.name} ({_whose(one)})" for one in dead]),
                where=name,
                remedy=_("{down}, if it is yours").format(down=_down(dead[0])),
            )


def _down(one: ClusterContainer) -> str:
    target, name = one.labels.get(TARGET_LABEL, "TARGET"), one.labels.get(CLUSTER_LABEL, "")
    return f"rlbox cluster down {target} --name {name}"


def _whose(one: ClusterContainer) -> str:
    return f"of {one.labels.get(MAKER_LABEL, 'somebody')}, {one.status} with {one.exit_code}"
