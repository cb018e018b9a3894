"""Take a cluster away: containers, keys, sessions and rules, on every node that answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.app import App
from rlbox.cluster.connection import NodeLink
from rlbox.cluster.context import Story, story_of
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.fleet import held
from rlbox.cluster.in_use import refuse_in_use
from rlbox.cluster.options import ClusterWish
from rlbox.cluster.plan import ID_LABEL, NODE_LABEL, folder_of, load_cluster, own_plan, rules_name
from rlbox.errors import NodeError
from rlbox.i18n import _

GRACE_S = 5
_DOWN_S = 240.0


@dataclass(frozen=True, kw_only=True)
class DownOutcome:
    """What was taken away, in words, by node."""

    name: str
    gone: Mapping[str, list[str]]


def take_down(app: App, wish: ClusterWish, *, force: bool = False) -> DownOutcome:
    """Take a cluster away wherever it is found on the nodes; that of another user stays.

    Parameters
    ----------
    force
        Under a job or a run that goes on there, too.

    Raises
    ------
    LockHeld
        A job or a run goes on there: nothing was done.
    NodeError
        Whether one goes on cannot be asked, and nothing was done; or a node cannot be reached: on the others it is
        gone, and the error says what may be left where.
    """
    with story_of(app, wish) as story:
        gone: dict[str, list[str]] = {}
        if story.fleet.links:
            with held(story.fleet, f"rlbox cluster down {wish.target}"):
                survey = story.survey()
                standing = None if force else story.standing(survey)
                if standing:
                    refuse_in_use(story, standing)
                gone = story.fleet.each(lambda link: _down(story, link, survey.facts[link.name]))
        _refuse_rest(story, gone)
        return DownOutcome(name=story.name, gone=gone)


def _down(story: Story, link: NodeLink, facts: NodeFacts) -> list[str]:
    mine = [one for one in facts.clusters if own_plan(one.labels, story.name, facts.uid)]
    ids = {one.labels[ID_LABEL] for one in mine}
    if record := load_cluster(facts.record):  # its containers may have been removed by hand
        ids.add(record.id)
    names = {link.name, *(one.labels[NODE_LABEL] for one in mine)}
    done: dict[str, Any] = link.ask(
        "take-down",
        timeout_s=_DOWN_S,
        containers=[one.id for one in mine],
        grace=GRACE_S,
        mount=story.image.container.mount,
        disk=link.wish.data,
        paths=sorted(folder_of(facts.uid, story.name, name) for name in names),
        rules=sorted(map(rules_name, ids)),
    )
    told = [one.name for one in mine]
    told += ["logs of Ray"] if done["sessions"] else []
    return told + (["its folder"] if done["folder"] else []) + (["rules"] if done["rules"] else [])


def _refuse_rest(story: Story, gone: Mapping[str, list[str]]) -> None:
    if not story.fleet.unreached:
        return
    lines = "\n".join(f"  {one.where}: {one.title}: {one.seen}" for one in story.fleet.unreached)
    done = _("; it is gone from {gone}").format(gone=", ".join(gone)) if gone else ""
    raise NodeError(
        _("cluster {story} may be left on nodes that cannot be reached{done}\n{lines}").format(
            story=story.name, done=done, lines=lines
        ),
        next_step=f"rlbox cluster down {story.wish.words}, once they answer",
    )
