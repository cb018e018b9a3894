"""Take a cluster away: containers, keys, sessions and rules, on every node that answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.app import App
from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.context import ClusterContext, open_context
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.fleet import held
from rlbox.cluster.in_use import require_unused
from rlbox.cluster.options import ClusterOptions
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


def stop_cluster(app: App, options: ClusterOptions, *, force: bool = False) -> DownOutcome:
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
    with open_context(app, options) as context:
        gone: dict[str, list[str]] = {}
        if context.fleet.links:
            with held(context.fleet, f"rlbox cluster down {options.target}"):
                survey = context.survey()
                standing = None if force else context.standing(survey)
                if standing:
                    require_unused(context, standing)
                gone = context.fleet.each(lambda link: _down(context, link, survey.facts[link.name]))
        _refuse_rest(context, gone)
        return DownOutcome(name=context.name, gone=gone)


def _down(context: ClusterContext, link: NodeConnection, facts: NodeFacts) -> list[str]:
    mine = [one for one in facts.clusters if own_plan(one.labels, context.name, facts.uid)]
    ids = {one.labels[ID_LABEL] for one in mine}
    if record := load_cluster(facts.record):  # its containers may have been removed by hand
        ids.add(record.id)
    names = {link.name, *(one.labels[NODE_LABEL] for one in mine)}
    done: dict[str, Any] = link.ask(
        "take-down",
        timeout_s=_DOWN_S,
        containers=[one.id for one in mine],
        grace=GRACE_S,
        mount=context.image.container.mount,
        disk=link.options.data,
        paths=sorted(folder_of(facts.uid, context.name, name) for name in names),
        rules=sorted(map(rules_name, ids)),
    )
    told = [one.name for one in mine]
    told += ["logs of Ray"] if done["sessions"] else []
    return told + (["its folder"] if done["folder"] else []) + (["rules"] if done["rules"] else [])


def _refuse_rest(context: ClusterContext, gone: Mapping[str, list[str]]) -> None:
    if not context.fleet.unreached:
        return
    lines = "\n".join(f"  {one.where}: {one.title}: {one.seen}" for one in context.fleet.unreached)
    done = _("; it is gone from {gone}").format(gone=", ".join(gone)) if gone else ""
    raise NodeError(
        _("cluster {context} may be left on nodes that cannot be reached{done}\n{lines}").format(
            context=context.name, done=done, lines=lines
        ),
        next_step=f"rlbox cluster down {context.options.option_text}, once they answer",
    )
