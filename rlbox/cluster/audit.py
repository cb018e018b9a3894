"""Look on every node of a cluster at what its processes listen on."""

from __future__ import annotations

from collections.abc import Mapping

from rlbox.cluster.carry import lives_of
from rlbox.cluster.facts import Listener, NodeFacts
from rlbox.cluster.judge.listeners import judge_listeners
from rlbox.cluster.labels import ID_LABEL
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.preflight import problems_text
from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.reach.link import NodeLink
from rlbox.errors import NodeError
from rlbox.findings import Finding
from rlbox.i18n import _


def _listeners(link: NodeLink, plan: ClusterPlan) -> tuple[Listener, ...]:
    """Return what the processes of a cluster listen on at a node."""
    rows = lives_of(link, plan)
    ids = [str(row["id"]) for row in rows if row["labels"].get(ID_LABEL) == plan.id]
    told = link.ask("audit", containers=ids)["listens"]
    return tuple(Listener(**{key: row[key] for key in ("port", "address", "pid", "words")}) for row in told)


def _judged(
    plan: ClusterPlan, found: Mapping[str, tuple[Listener, ...]], facts: Mapping[str, NodeFacts]
) -> tuple[Finding, ...]:
    return tuple(judge_listeners(plan, found, {name: one.ephemeral for name, one in facts.items()}))


def audit(fleet: Fleet, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
    """Return what of it the plan has not named, on the nodes that can tell."""
    found, __ = fleet.tried(lambda link: _listeners(link, plan))
    return _judged(plan, found, facts)


def require_audit(fleet: Fleet, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> None:
    """Raise `NodeError` where a process of the cluster listens besides its plan, or a node cannot tell."""
    found = _judged(plan, fleet.each(lambda link: _listeners(link, plan)), facts)
    if found:
        raise NodeError(
            _("cluster {plan} listens where its plan has named no port\n{problems_text}").format(
                plan=plan.name, problems_text=problems_text(found)
            ),
            where=", ".join(one.where for one in found),
            next_step=found[0].remedy,
        )
