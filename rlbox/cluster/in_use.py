"""What runs on a cluster: its Ray is asked for jobs, its head's engine for runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.context import ClusterContext, RunningCluster
from rlbox.cluster.jobs import ClusterJob, JobsApi
from rlbox.cluster.nodes import LOCAL
from rlbox.cluster.plan import ID_LABEL, ClusterPlan
from rlbox.engine.container import RUN_LABEL
from rlbox.errors import LockHeld, NodeError, RlboxError
from rlbox.findings import listed
from rlbox.i18n import _

_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class RunningWork:
    """What goes on: jobs of the cluster's Ray that have not ended, runs whose containers are beside its head.

    `unknown` says why something of it could not be asked, empty where everything was.
    """

    jobs: tuple[ClusterJob, ...] = ()
    runs: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def told(self) -> str:
        """It in words."""
        jobs = [f"job {job.id} ({job.entrypoint[:_SHOWN]})" for job in self.jobs]
        return listed([*(f"run {run}" for run in self.runs), *jobs])


def require_idle(plan: ClusterPlan, words: str, work: RunningWork) -> None:
    """Refuse to end Ray under what goes on there.

    Parameters
    ----------
    words
        What means the cluster behind a verb.

    Raises
    ------
    LockHeld
        A job or a run goes on.
    NodeError
        Nobody knows whether one does.
    """
    down = f"rlbox cluster down {words} --force"
    if work.jobs or work.runs:
        raise LockHeld(
            _("cluster {plan} is in use: {told}").format(plan=plan.name, told=work.told),
            where=plan.head.name,
            next_step=_("{stop}, then the same command again; or {down}").format(
                stop=_stop(plan, words, work), down=down
            ),
        )
    if work.unknown:
        raise NodeError(
            _("what goes on on cluster {plan} is not known: {unknown}").format(plan=plan.name, unknown=work.unknown),
            where=plan.head.name,
            next_step=_("the same command again; or {down}, where nothing of it is needed").format(down=down),
        )


def _stop(plan: ClusterPlan, words: str, work: RunningWork) -> str:
    """Return the line that ends the first of what goes on."""
    if work.runs:
        return head_command_line(plan, "stop", work.runs[0])
    return f"rlbox cluster stop {words} {shlex.quote(work.jobs[0].id)}"


def head_command_line(plan: ClusterPlan, verb: str, run: str) -> str:
    """Return the line that does something with a run beside the head, from here."""
    where = "" if plan.head.name == LOCAL else f"DOCKER_HOST=ssh://{plan.head.name} "
    return _("{where}rlbox {verb} {run} --target {target} --data {data}").format(
        where=where, verb=verb, run=run, target=plan.target, data=shlex.quote(plan.head.data)
    )


_ANSWER_S = 30.0


def require_unused(context: ClusterContext, standing: RunningCluster) -> None:
    """Refuse to end the Ray of a cluster under a job or a run, or where nobody knows of one; see `refuse_going`.

    A cluster whose head has ended has lost its jobs already, and with them what its runs do.
    """
    plan = standing.plan
    head = context.fleet.links.get(plan.head.name)
    if head is None:
        require_idle(plan, context.options.option_text, RunningWork(unknown="its head is not reached"))
    elif standing.going(head.name):
        require_idle(plan, context.options.option_text, find_running_work(head, plan))


def find_running_work(head: NodeConnection, plan: ClusterPlan) -> RunningWork:
    """Return what goes on on a cluster whose head runs."""
    jobs: tuple[ClusterJob, ...] = ()
    runs: tuple[str, ...] = ()
    unknown = ""
    try:
        runs = () if plan.head.here else _runs(head, plan)
        jobs = tuple(job for job in JobsApi(head, plan, answer_s=_ANSWER_S).jobs() if not job.ended)
    except RlboxError as error:
        unknown = error.what
    return RunningWork(jobs=jobs, runs=runs, unknown=unknown)


def _runs(head: NodeConnection, plan: ClusterPlan) -> tuple[str, ...]:
    rows = head.engine().list_containers(f"{ID_LABEL}={plan.id}")
    found = [row["Labels"].get(RUN_LABEL, "") for row in rows if row.get("State") in ("created", "running", "paused")]
    return tuple(sorted(filter(None, found)))
