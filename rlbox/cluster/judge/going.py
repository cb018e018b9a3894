"""What goes on on a cluster that stands, and the refusal to take the cluster from it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from rlbox.cluster.job import ClusterJob
from rlbox.cluster.nodes import LOCAL
from rlbox.cluster.plan import ClusterPlan
from rlbox.errors import LockHeld, NodeError
from rlbox.findings import listed
from rlbox.i18n import _

_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class GoingWork:
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


def refuse_going(plan: ClusterPlan, words: str, work: GoingWork) -> None:
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


def _stop(plan: ClusterPlan, words: str, work: GoingWork) -> str:
    """Return the line that ends the first of what goes on."""
    if work.runs:
        return there(plan, "stop", work.runs[0])
    return f"rlbox cluster stop {words} {shlex.quote(work.jobs[0].id)}"


def there(plan: ClusterPlan, verb: str, run: str) -> str:
    """Return the line that does something with a run beside the head, from here."""
    where = "" if plan.head.name == LOCAL else f"DOCKER_HOST=ssh://{plan.head.name} "
    return _("{where}rlbox {verb} {run} --target {target} --data {data}").format(
        where=where, verb=verb, run=run, target=plan.target, data=shlex.quote(plan.head.data)
    )
