"""Carry out a command line beside the head of a cluster that stands, its nodes being watched from here meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.judge.going import there
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.preflight import problems_text
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.status import status_here
from rlbox.cluster.story import StandingCluster, Story, story_of
from rlbox.cluster.survey import Survey
from rlbox.cluster.view import ClusterStatus
from rlbox.cluster.wish import ClusterWish
from rlbox.cluster.work.jobs import require_head
from rlbox.cluster.work.vigil import LINES_FILE, Vigil, evidence_folder, lay, vigil
from rlbox.errors import EngineError, NodeError
from rlbox.i18n import _
from rlbox.secrets.masks import SECRETS_VARIABLE, SecretMasker
from rlbox.values import Secret

BESIDE = "RLBOX_BESIDE_HEAD"
"""Set, to the cluster's name, for a command that is carried out beside the head."""


@dataclass(frozen=True, kw_only=True)
class BesideWish:
    """What is carried out: `words` after `rlbox`, with `env` more variables and secrets, for the run named `run`."""

    words: tuple[str, ...]
    run: str
    env: Mapping[str, str]
    secrets: Mapping[str, Secret]
    terminal: bool = False


def look_beside(app: App, wish: ClusterWish) -> tuple[ClusterPlan, str]:
    """Return a cluster that a run could be on, and where its head's Ray has its files; `NodeError` where none is."""
    with story_of(app, wish) as story:
        survey = story.survey()
        standing = story.require_standing(survey)
        head = require_head(story, standing)
        _require_healthy(story, survey, standing)
        return standing.plan, ray_folder(head, standing)


def ray_folder(head: NodeLink, standing: StandingCluster) -> str:
    """Return the folder of the head's Ray, as its container names it on the data disk."""
    return next(iter(head.engine().execute(standing.containers[head.name].id, ("readlink", "-f", "/tmp/ray"))), "")  # noqa: S108


def carry_out_beside(app: App, wish: ClusterWish, work: BesideWish) -> int:
    """Carry out a command line in a container beside the head, with this process's streams; return its exit code.

    Everything goes over the head's one connection. What happens to nodes meanwhile is said; when the run failed, what
    the nodes tell is laid beside its evidence.

    Raises
    ------
    NodeError
        There is no such cluster, a node of it is not as it should be, or the head is no longer reached: a run that had
        started goes on there.
    """
    with story_of(app, wish) as story:
        survey = story.survey()
        standing = story.require_standing(survey)
        head = require_head(story, standing)
        _require_healthy(story, survey, standing)
        app.say(f"the run is on node {head.name}; from here: {there(standing.plan, 'logs', work.run)}")
        values = {name: secret.reveal() for name, secret in work.secrets.items()}
        masks = SecretMasker({**values, SECRETS_VARIABLE: ",".join(values)})
        with vigil(story, survey, standing, masks) as watch:
            code = _carry_out(app, head, standing, work, values, watch)
            if code:
                _explain(app, head, work.run, watch)
            return code


def _require_healthy(story: Story, survey: Survey, standing: StandingCluster) -> None:
    """Refuse a cluster that lacks nodes, for which the run would wait, and a head without an engine."""
    head = standing.plan.head.name
    if survey.facts[head].engine.state != "ok":
        raise NodeError(_("the head has no engine that answers: the run's container would be beside it"), where=head)
    status = status_here(story, survey, standing)
    if status.healthy:
        return
    found = (*status.failures, *status.listens)
    table = problems_text(found) or "\n".join(_lacking(status))
    raise NodeError(
        _("cluster {plan} is not as it should be\n{table}").format(plan=status.plan.name, table=table),
        next_step=_("rlbox cluster up {words} brings back what died").format(words=story.wish.words),
    )


def _lacking(status: ClusterStatus) -> Sequence[str]:
    return [f"  {node.name}: {node.container}, {node.missing}" for node in status.nodes if not node.healthy]


def _carry_out(
    app: App, head: NodeLink, standing: StandingCluster, work: BesideWish, values: Mapping[str, str], watch: Vigil
) -> int:
    from rlbox.engine.remote_helper import HelperRun, run_helper
    from rlbox.ssh.tunnel import EngineTunnel

    told, plan = head.ask("beside"), standing.plan
    tunnel = EngineTunnel(
        address=head.engine_address,
        socket=str(told["socket"]),
        uid=int(head.facts["uid"]),
        gid=int(head.facts["gid"]),
        socket_gid=int(told["group"]),
        home=str(told["home"]),
        state=str(told["state"]),
    )
    helper = HelperRun(
        target=plan.target,
        image=standing.containers[head.name].image,
        data=plan.head.data,
        create=False,
        words=work.words,
        env={**work.env, **values, BESIDE: plan.name, "RLBOX_DATA": plan.head.data},
        terminal=work.terminal,
    )
    try:
        return run_helper(tunnel, app.project, helper)
    except EngineError as error:
        lines = [f"\n  {one.where}: {one.title}: {one.seen}" for one in watch.findings()]
        what = "".join([error.what, *lines])
        raise NodeError(what, where=head.name, next_step=there(plan, "logs", work.run)) from error


def _explain(app: App, head: NodeLink, run: str, watch: Vigil) -> None:
    """Lay what the nodes tell beside the evidence of a run that failed."""
    folder = evidence_folder(head, run)
    if not folder:
        return
    try:
        lay(head, folder, watch.evidence())
    except NodeError as error:
        app.say(f"evidence of the nodes was not written: {error.what}")
        return
    app.say(f"evidence of all nodes: {head.wish.data}/{folder}/{LINES_FILE} on {head.name}")
