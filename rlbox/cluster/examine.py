"""Examine nodes before a cluster, or under one: every question, every node, every problem; nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.judge.proof import Proof
from rlbox.cluster.ports import BASE
from rlbox.cluster.preflight import CHECKS, judge_survey
from rlbox.cluster.probe import plan_ports, probe_ports, probe_ways
from rlbox.cluster.prove import prove
from rlbox.cluster.status import status_here
from rlbox.cluster.story import story_of
from rlbox.cluster.view import ClusterStatus
from rlbox.cluster.wish import ClusterWish
from rlbox.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What was found on how many nodes by how many questions; `status` of the cluster, None where there is none.

    `proof` are the figures of the work that its nodes were given, None where they were given none.
    """

    findings: tuple[Finding, ...]
    nodes: int
    checks: int
    status: ClusterStatus | None
    proof: Proof | None = None

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return any(one.level == "error" for one in self.findings)


def examine(app: App, wish: ClusterWish, paths: tuple[str, ...] = (), *, work: bool = False) -> Examined:
    """Return what is wrong with the nodes of a cluster, or of one to come; with `work` by work that proves them.

    Raises
    ------
    NodeError
        They were to be given work, and there is no cluster.
    """
    with story_of(app, wish) as story:
        survey = story.survey(paths)
        standing = story.require_standing(survey) if work else story.standing(survey)
        status = status_here(story, survey, standing) if standing else None
        if survey.facts:
            survey = probe_ways(story.fleet, survey)
            if standing is None:
                base = story.target.cluster.port
                survey = probe_ports(story.fleet, survey, plan_ports(survey, story.name, base, BASE))
        happened = status.failures if status else ()
        named = {one.where for one in happened}  # it says more than that a node does not answer
        unreached = [one for one in story.fleet.unreached if one.where not in named]
        found = judge_survey(survey, story.needs(paths), unreached)
        found = (*happened, *(status.listens if status else ()), *found)
        proof = None
        if work and standing:
            proof, proven = prove(story, standing.plan, survey.facts)
            found = (*found, *proven)
        return Examined(findings=found, nodes=len(story.wishes), checks=len(CHECKS), status=status, proof=proof)
