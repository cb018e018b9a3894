"""Judge what earlier clusters left on the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.labels import CLUSTER_LABEL, MAKER_LABEL
from rlbox.cluster.survey import Survey
from rlbox.findings import Finding, listed


def judge_remains(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield containers of clusters that have ended and were never taken away, with their owner."""
    for name, facts in survey.facts.items():
        dead = [one for one in facts.clusters if not one.going]
        if dead:
            yield Finding(
                id="remains",
                title="containers of earlier clusters lie there",
                level="warning",
                seen=listed([f"{one.name} ({_whose(one)})" for one in dead]),
                where=name,
                remedy=f"rlbox cluster down --name {dead[0].labels.get(CLUSTER_LABEL, '')}, if it is yours",
            )


def _whose(one: ClusterContainer) -> str:
    return f"of {one.labels.get(MAKER_LABEL, 'somebody')}, {one.status} with {one.exit_code}"
