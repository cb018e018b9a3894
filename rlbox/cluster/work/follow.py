"""Follow a job: what its driver writes, what happens to nodes meanwhile, and how it ends."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlbox.cluster.job import ClusterJob
from rlbox.cluster.reach.link import Going, NodeLink
from rlbox.cluster.story import StandingCluster, Story
from rlbox.cluster.survey import Survey
from rlbox.cluster.work.jobs import JobsApi
from rlbox.cluster.work.logs import start_logs
from rlbox.cluster.work.watch import WatchedNodes
from rlbox.errors import RlboxError
from rlbox.secrets.masks import SecretMasker
from rlbox.terminal import ControlFilter

_ASK_S = 0.5
_LAST_S = 5.0
_MOST = 1 << 22

_News = str | RlboxError | None


class JobFollower:
    """The log of a job's driver, and the news of the nodes: they are told at once, whatever the head is asked then."""

    def __init__(self, going: Going, id_: str, shown: _Shown, nodes: WatchedNodes) -> None:
        self._going, self._id, self._shown = going, id_, shown
        self.nodes = nodes
        self.news: queue.Queue[_News] = queue.Queue()
        threading.Thread(target=self._hear, name=f"log of {id_}", daemon=True).start()

    def _hear(self) -> None:
        try:
            for part in self._going:
                for row in part["logs"]:
                    self.news.put(str(row["text"]))
            self.news.put(None)
        except RlboxError as error:
            self.news.put(error)

    def follow(self, api: JobsApi) -> ClusterJob:
        """Show what comes until the job has ended, and return how; `NodeError` where the head is gone."""
        asked, job = 0.0, ClusterJob(id=self._id, status="PENDING")
        while True:
            if not job.ended and time.monotonic() - asked > _ASK_S:
                asked, job = time.monotonic(), api.job(self._id)
                if job.ended:
                    self._going.end()
            try:
                news = self.news.get(timeout=_LAST_S if job.ended else _ASK_S)
            except queue.Empty:
                news = None if job.ended else ""
            match news:
                case str():
                    self._shown.write(news)
                case None:
                    self._shown.close()
                    return job
                case _:
                    raise news


@contextmanager
def following(
    story: Story, survey: Survey, standing: StandingCluster, head: NodeLink, id_: str, masks: SecretMasker
) -> Iterator[JobFollower]:
    """Yield what follows a job, the nodes being watched while the block runs."""
    going = start_logs(story, standing, head.name, [f"job-driver-{id_}.log"], follow=True, most=_MOST)
    nodes = WatchedNodes(story, standing, survey.offsets)
    try:
        yield JobFollower(going, id_, _Shown(masks, quiet=story.app.as_json), nodes)
    finally:
        nodes.close()


class _Shown:
    """What a driver writes, on stdout, without secrets and control sequences."""

    def __init__(self, masks: SecretMasker, *, quiet: bool) -> None:
        self._masked, self._printable, self._quiet = masks.stream(), ControlFilter(), quiet

    def write(self, text: str) -> None:
        self._put(self._printable.feed(self._masked.feed(text.encode())))

    def close(self) -> None:
        self._put(self._printable.feed(self._masked.close()) + self._printable.close())

    def _put(self, data: bytes) -> None:
        if data and not self._quiet:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
