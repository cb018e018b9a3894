"""Look at a cluster from any machine that reaches its nodes; nothing of it is kept here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from rlbox.app import App
from rlbox.cluster.audit import audit
from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.judge.failures import MemberFacts, judge_failures
from rlbox.cluster.plan import ClusterMember, ClusterPlan, plan_of_labels
from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.start import ask_state
from rlbox.cluster.state import RayState, lacking
from rlbox.cluster.story import StandingCluster, Story, story_of
from rlbox.cluster.survey import Survey, Way
from rlbox.cluster.view import ClusterStatus, status_of
from rlbox.cluster.wish import ClusterWish
from rlbox.findings import Finding

_SSH = 22


def probe_cluster(app: App, wish: ClusterWish) -> ClusterStatus:
    """Return how a cluster is; `NodeError` where no node that answers knows it."""
    with story_of(app, wish) as story:
        survey = story.survey()
        standing = story.standing(survey)
        if standing is None:
            for one in story.fleet.unreached:
                app.say(f"{one.where}: {one.title}: {one.seen}")
        return status_here(story, survey, standing or story.require_standing(survey))


def status_here(story: Story, survey: Survey, standing: StandingCluster) -> ClusterStatus:
    """Return how a cluster is whose nodes are connected."""
    plan = standing.plan
    state = _state(story.fleet.links.get(plan.head.name), standing)
    containers = {name: _told(standing.containers.get(name)) for name in survey.facts if plan.member(name)}
    disks = {name: facts.disk.free for name, facts in survey.facts.items()}
    return dataclasses.replace(
        status_of(plan, state, containers, disks),
        listens=audit(story.fleet, plan, survey.facts),
        failures=_failures(story, survey, standing, state),
    )


def _failures(story: Story, survey: Survey, standing: StandingCluster, state: RayState) -> tuple[Finding, ...]:
    """Return what happened to nodes of a cluster, the first first; what to do about it stands with each."""
    found = judge_failures(_members(story, survey, standing, state))
    back = f"rlbox cluster up {story.wish.words} brings back what died"
    reach = {one.where: one.remedy for one in story.fleet.unreached}
    several = len([one for one in found if not one.follows]) > 0 and len(found) > 1
    return tuple(
        one.finding(reach.get(one.node, back), first=several and number == 0) for number, one in enumerate(found)
    )


def _members(story: Story, survey: Survey, standing: StandingCluster, state: RayState) -> Iterator[MemberFacts]:
    plan = standing.plan
    said = {one.where: f"{one.title}: {one.seen}" for one in story.fleet.unreached}
    missing = {plan.head.name: state.said} if state.said else lacking(plan, state)
    tried = ways_to(story.fleet, plan, [member for member in plan.members if member.name in said])
    for member in plan.members:
        facts, began = survey.facts.get(member.name), _identity(member, standing.containers.get(member.name))
        yield MemberFacts(
            name=member.name,
            container=standing.containers.get(member.name),
            said=said.get(member.name, "" if facts else "it is none of the nodes that were named"),
            ways=tried.get(member.name, ()),
            lost=missing.get(member.name, ""),
            disk=facts.disk if facts else None,
            restarted=bool(facts and began and began != facts.identity),
            offset=survey.offsets.get(member.name, 0.0),
            here=member.here,
        )


def _identity(member: ClusterMember, container: ClusterContainer | None) -> str:
    """Return the identity that a node's machine had as its Ray was started: after a heal its own label alone has it."""
    own = plan_of_labels(container.labels) if container else None
    found = own.member(member.name) if own else None
    return found.identity if found else member.identity


def ways_to(fleet: Fleet, plan: ClusterPlan, goals: list[ClusterMember]) -> Mapping[str, tuple[Way, ...]]:
    """Return how the nodes that are heard of reach those that are not: at sshd's usual port, and at Ray's."""
    rows = [(goal, port) for goal in goals for port in (_SSH, plan.ports.of("node-manager"))]

    def ask(link: NodeLink) -> list[Way]:
        if not link.heard:
            return []
        told = link.ask("reach", goals=[(goal.address, port) for goal, port in rows], word="")["reached"]
        return [
            Way(source=link.name, goal=goal.name, address=goal.address, port=port, said=str(one["said"]))
            for (goal, port), one in zip(rows, told, strict=True)
        ]

    found, _ = fleet.tried(ask) if rows else ({}, {})
    ways = [way for several in found.values() for way in several]
    return {goal.name: tuple(way for way in ways if way.goal == goal.name) for goal in goals}


def _state(head: NodeLink | None, standing: StandingCluster) -> RayState:
    if head is None:
        return RayState(said="its head is none of the nodes that answer")
    if not standing.going(head.name):
        return RayState(said="its head does not run")
    return ask_state(head, standing.plan)


def _told(one: ClusterContainer | None) -> str:
    if one is None:
        return "gone"
    why = ", out of memory" if one.oom else ""
    return one.status if one.going else f"{one.status} ({one.exit_code}{why})"
