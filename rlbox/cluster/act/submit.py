"""Run a job on a cluster and follow it: what its driver says, how it ends, and what went wrong on which node first."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlbox.app import App
from rlbox.cluster.act.evidence import gather
from rlbox.cluster.act.jobs import JobsApi, session_of
from rlbox.cluster.act.reach.link import Going, Link
from rlbox.cluster.act.story import StandingCluster, Story, story_of
from rlbox.cluster.act.watch import FleetWatch
from rlbox.cluster.job import JobState, JobWish
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.ray import container_name, role_of
from rlbox.cluster.verdict import OURS, Loss, first_loss
from rlbox.cluster.wish import ClusterWish
from rlbox.errors import Interrupted, NodeError, RlboxError
from rlbox.secrets.masks import SECRETS_VARIABLE, Masks

_POLL_S, _TICK_S = 1.0, 0.1
_LAST_WORDS_S = 3.0
_LOST_S = 60.0
"""How long the head may not answer for a job, with its container running, before that is told."""


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How a job ended; `code` is the exit code that stands for it."""

    id: str
    state: JobState
    losses: tuple[Loss, ...] = field(default=())


def submit(app: App, wish: ClusterWish, job: JobWish, show: Callable[[str], None]) -> JobEnd:
    """Submit a job and follow it to its end, or leave it alone at once.

    Raises
    ------
    NodeError
        The cluster does not stand, or a node of it failed: the one that failed first is named, and the job stopped.
    Interrupted
        Ctrl-C: the job was stopped.
    """
    with _following(app, wish) as following:
        api = JobsApi(following.head, following.plan)
        named = dataclasses.replace(job, id=job.id or _new_id(following.plan))
        api.submit(named, api.send(job.folder, job.exclude))
        app.say(f"job {named.id}")
        if job.detach:
            return JobEnd(id=named.id, state=api.state(named.id))
        masks = Masks({**named.env, SECRETS_VARIABLE: ",".join(named.secret)})
        return following.to_end(api, named.id, lambda text: show(masks.text(text)))


def follow_job(app: App, wish: ClusterWish, id_: str, show: Callable[[str], None]) -> JobEnd:
    """Follow a job that was submitted before, from its first line on."""
    with _following(app, wish) as following:
        return following.to_end(JobsApi(following.head, following.plan), id_, show, ours=False)


def stop_job(app: App, wish: ClusterWish, id_: str) -> tuple[str, ...]:
    """Stop a job, or all that run where none is named; return those that were told to end."""
    with story_of(app, wish) as story:
        plan = _standing(story)[1].plan
        api = JobsApi(story.fleet.links[plan.head.name], plan)
        going = [str(row.get("submission_id")) for row in api.jobs() if row.get("status") in ("PENDING", "RUNNING")]
        return tuple(name for name in going if id_ in ("", name) and api.stop(name))


def _new_id(plan: ClusterPlan) -> str:
    return f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{time.monotonic_ns() % 1000:03d}"


def _standing(story: Story) -> tuple[dict[str, float], StandingCluster]:
    survey = story.survey()
    found = story.require_standing(survey)
    if not found.going(found.plan.head.name):
        raise NodeError(
            f"the head of cluster {found.plan.name} does not run",
            where=found.plan.head.name,
            next_step=f"rlbox cluster up {story.wish.target}",
        )
    return dict(survey.offsets), found


@contextmanager
def _following(app: App, wish: ClusterWish) -> Iterator[_Following]:
    with story_of(app, wish) as story:
        offsets, standing = _standing(story)
        yield _Following(story, standing.plan, offsets)


class _Following:
    """A cluster while a job of it is followed."""

    def __init__(self, story: Story, plan: ClusterPlan, offsets: dict[str, float]) -> None:
        self.story, self.plan, self._offsets = story, plan, offsets
        self.head: Link = story.fleet.links[plan.head.name]
        self._lines: queue.Queue[str] = queue.Queue()

    def to_end(self, api: JobsApi, id_: str, show: Callable[[str], None], *, ours: bool = True) -> JobEnd:
        """Follow a job to its end; on Ctrl-C it is stopped, if it is `ours`."""
        watch = FleetWatch(self.story.fleet, self.plan, self._offsets)
        going = self._follow(id_)
        try:
            return self._to_end(api, id_, show, watch)
        except KeyboardInterrupt:
            if not ours:
                raise
            with contextlib.suppress(RlboxError):
                api.stop(id_)
            raise Interrupted(f"job {id_} was stopped") from None
        finally:
            going.end()
            watch.close()

    def _follow(self, id_: str) -> Going:
        folder = session_of(self.head, container_name(self.plan), self.story.image.container.mount)
        going = self.head.start(
            "follow",
            disk=self.head.wish.data,
            folder=folder,
            names=[f"job-driver-{id_}.log"],
            lines=-1,
            grow=True,
        )
        threading.Thread(target=self._listen, args=(going,), name="driver's log", daemon=True).start()
        return going

    def _listen(self, going: Going) -> None:
        with contextlib.suppress(RlboxError):
            for row in going:
                for line in row["lines"]:
                    self._lines.put(line)

    def _show(self, show: Callable[[str], None]) -> None:
        while not self._lines.empty():
            show(self._lines.get())

    def _to_end(self, api: JobsApi, id_: str, show: Callable[[str], None], watch: FleetWatch) -> JobEnd:
        asked = heard = time.monotonic()
        while True:
            self._show(show)
            losses = watch.poll()
            if any(loss.kind != OURS for loss in losses) or any(loss.node == self.head.name for loss in losses):
                return self._lost(api, id_, losses, show, watch)
            for loss in losses:
                self.story.app.say(loss.sentence(self._role(loss.node)))
            if time.monotonic() - asked > _POLL_S:
                asked = time.monotonic()
                state = self._state(api, id_)
                if state.status != "UNREACHABLE":
                    heard = asked
                elif asked - heard > _LOST_S:
                    raise NodeError(f"the head does not answer for job {id_}: {state.message}", where=self.head.name)
                if state.ended:
                    self._last_words(show)
                    return JobEnd(id=id_, state=state)
            time.sleep(_TICK_S)

    def _state(self, api: JobsApi, id_: str) -> JobState:
        try:
            return api.state(id_)
        except RlboxError as error:
            return JobState(status="UNREACHABLE", message=error.what)

    def _last_words(self, show: Callable[[str], None]) -> None:
        """Show what the driver wrote before it ended, once nothing more comes."""
        until, quiet = time.monotonic() + _LAST_WORDS_S, time.monotonic()
        while time.monotonic() < until and time.monotonic() - quiet < 0.6:
            if not self._lines.empty():
                quiet = time.monotonic()
            self._show(show)
            time.sleep(_TICK_S)

    def _role(self, node: str) -> str:
        member = self.plan.member(node)
        return role_of(self.plan, member) if member else "node"

    def _lost(
        self, api: JobsApi, id_: str, losses: list[Loss], show: Callable[[str], None], watch: FleetWatch
    ) -> JobEnd:
        """Say what failed first, gather what explains it, and stop the job; nothing is tried again."""
        first = first_loss(losses)
        if first is None:
            what = losses[0].sentence(self._role(losses[0].node))
            raise NodeError(
                f"{what}; job {id_} goes on",
                where=losses[0].node,
                next_step=f"rlbox cluster logs {self.plan.target} --job {id_} -f",
            )
        self.story.app.say(f"failed first: {first.sentence(self._role(first.node))}")
        folder = gather(self.story.fleet, self.plan, losses, self.story.image.container.mount)
        stopped = ""
        if first.node != self.head.name:
            with contextlib.suppress(RlboxError):
                stopped = "; it was stopped" if api.stop(id_) else ""
        self._show(show)
        others = [loss.sentence(self._role(loss.node)) for loss in losses if loss is not first]
        more = "".join(f"\n  then: {text}" for text in others)
        raise NodeError(
            f"{first.sentence(self._role(first.node))}: job {id_} cannot go on{stopped}{more}",
            where=f"evidence: {folder}",
            next_step=f"rlbox cluster up {self.plan.target} brings it back; then the job again",
        )
