"""Look at a cluster from any machine that reaches its nodes; nothing of it is kept here."""

from __future__ import annotations

import dataclasses

from rlbox.app import App
from rlbox.cluster.act.audit import audit
from rlbox.cluster.act.reach.link import NodeLink
from rlbox.cluster.act.start import ask_state
from rlbox.cluster.act.story import StandingCluster, Story, story_of
from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.state import RayState
from rlbox.cluster.survey import Survey
from rlbox.cluster.view import ClusterStatus, status_of
from rlbox.cluster.wish import ClusterWish


def probe_cluster(app: App, wish: ClusterWish) -> ClusterStatus:
    """Return how a cluster is; `NodeError` where no node that answers knows it."""
    with story_of(app, wish) as story:
        for one in story.fleet.unreached:
            app.say(f"{one.where}: {one.title}: {one.seen}")
        survey = story.survey()
        return status_here(story, survey, story.require_standing(survey))


def status_here(story: Story, survey: Survey, standing: StandingCluster) -> ClusterStatus:
    """Return how a cluster is whose nodes are connected."""
    plan = standing.plan
    state = _state(story.fleet.links.get(plan.head.name), standing)
    containers = {name: _told(standing.containers.get(name)) for name in survey.facts if plan.member(name)}
    disks = {name: facts.disk.free for name, facts in survey.facts.items()}
    status = status_of(plan, state, containers, disks)
    return dataclasses.replace(status, listens=audit(story.fleet, plan, survey.facts))


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
