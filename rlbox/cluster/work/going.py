"""Ask a cluster that stands what goes on on it: its Ray for jobs, its head's engine for runs."""

from __future__ import annotations

from rlbox.cluster.job import ClusterJob
from rlbox.cluster.judge.going import GoingWork, refuse_going
from rlbox.cluster.labels import ID_LABEL
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.story import StandingCluster, Story
from rlbox.cluster.work.jobs import JobsApi
from rlbox.engine.container import RUN_LABEL
from rlbox.errors import RlboxError

_ANSWER_S = 30.0


def refuse_in_use(story: Story, standing: StandingCluster) -> None:
    """Refuse to end the Ray of a cluster under a job or a run, or where nobody knows of one; see `refuse_going`.

    A cluster whose head has ended has lost its jobs already, and with them what its runs do.
    """
    plan = standing.plan
    head = story.fleet.links.get(plan.head.name)
    if head is None:
        refuse_going(plan, story.wish.words, GoingWork(unknown="its head is not reached"))
    elif standing.going(head.name):
        refuse_going(plan, story.wish.words, going_work(head, plan))


def going_work(head: NodeLink, plan: ClusterPlan) -> GoingWork:
    """Return what goes on on a cluster whose head runs."""
    jobs: tuple[ClusterJob, ...] = ()
    runs: tuple[str, ...] = ()
    unknown = ""
    try:
        runs = () if plan.head.here else _runs(head, plan)
        jobs = tuple(job for job in JobsApi(head, plan, answer_s=_ANSWER_S).jobs() if not job.ended)
    except RlboxError as error:
        unknown = error.what
    return GoingWork(jobs=jobs, runs=runs, unknown=unknown)


def _runs(head: NodeLink, plan: ClusterPlan) -> tuple[str, ...]:
    rows = head.engine().list_containers(f"{ID_LABEL}={plan.id}")
    found = [row["Labels"].get(RUN_LABEL, "") for row in rows if row.get("State") in ("created", "running", "paused")]
    return tuple(sorted(filter(None, found)))
