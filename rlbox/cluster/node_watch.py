"""Watch the nodes of a cluster while something runs on it: what happens to one is known long before Ray tells it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

from rlbox.amounts import duration_text
from rlbox.cluster.connection import SILENT_S, NodeConnection, RemoteStream
from rlbox.cluster.context import ClusterContext, RunningCluster
from rlbox.cluster.facts import ClusterContainer, NodeDisk, container_of, disk_of
from rlbox.cluster.failures import Failure, MemberFacts, find_failures, sort_failures
from rlbox.cluster.ray_runtime import list_ray_processes
from rlbox.cluster.status import status_here, ways_to
from rlbox.errors import RlboxError
from rlbox.findings import Finding

_LOOK_S, _ANSWER_S, _LEAST_S = 1.0, 5.0, 0.5
"""A node is looked at so often, and at once when it tells that something ended; its answer is waited for so long."""

_SETTLED_S = 2.0
"""A machine that goes down ends its connections first: whether others reach it is looked at again after this."""

_LAST_S, _PAUSE_S = 4.5, 0.1
"""How much longer than its silence a node that is gone takes to be told: the others try to reach it meanwhile."""


class NodesWatch:
    """Tells each thing that happens to a node once, from a thread of its own, until it is closed.

    Parameters
    ----------
    offsets
        Seconds that each node's clock is ahead of this machine's.
    tell
        Is called in that thread.
    """

    def __init__(
        self,
        context: ClusterContext,
        standing: RunningCluster,
        offsets: Mapping[str, float],
        tell: Callable[[Failure], None],
    ) -> None:
        self._story, self._standing, self._offsets, self._tell = context, standing, offsets, tell
        self._told: set[tuple[str, str]] = set()
        self._closed, self._telling = threading.Event(), threading.Lock()
        self._disks: dict[str, NodeDisk] = {}
        self._goings: list[RemoteStream] = []
        self._news: list[threading.Event] = []
        for name, link in context.fleet.links.items():
            if name in standing.containers:
                self._begin(link)

    def _begin(self, link: NodeConnection) -> None:
        news, going = threading.Event(), link.start("watch", here=self._standing.containers[link.name].here)
        self._news.append(news)
        self._goings.append(going)
        threading.Thread(target=self._hear, args=(link, going, news), name=f"news of {link.name}", daemon=True).start()
        threading.Thread(target=self._look, args=(link, news), name=f"watch of {link.name}", daemon=True).start()

    def _hear(self, link: NodeConnection, going: RemoteStream, news: threading.Event) -> None:
        with contextlib.suppress(RlboxError):
            for part in going:
                if "disk" in part:
                    self._disks[link.name] = disk_of(part["disk"])
                news.set()

    def _look(self, link: NodeConnection, news: threading.Event) -> None:
        while not self._closed.is_set():
            news.wait(_LOOK_S)
            news.clear()
            self._judge(link)

    def look(self) -> None:
        """Look at once at every node that is heard; what is new is told before this returns."""
        for name in self._standing.containers:
            if (link := self._story.fleet.links.get(name)) and link.heard:
                self._judge(link)

    def _judge(self, link: NodeConnection) -> None:
        failures = find_failures([self._member(link)])
        if any(one.id == "connection-cut" and (one.node, one.id) not in self._told for one in failures):
            self._closed.wait(_SETTLED_S)
            failures = find_failures([self._member(link)])
        for failure in failures:
            with self._telling:
                new = (failure.node, failure.id) not in self._told
                if new and not self._closed.is_set():
                    self._told.add((failure.node, failure.id))
                    self._tell(failure)

    def _member(self, link: NodeConnection) -> MemberFacts:
        known = self._standing.containers[link.name]
        container: ClusterContainer | None = known
        said = ""
        try:
            patience = min(_ANSWER_S, max(_LEAST_S, SILENT_S - link.silent_s()))
            rows = list_ray_processes(link, self._standing.plan, patience) if not link.lost else None
            container = next((container_of(row) for row in rows or () if row["id"] == known.id), None)
        except RlboxError:
            rows = None
        if rows is None:
            silent = link.silent_s()
            if not link.lost and silent < SILENT_S:  # slow, and no more
                return MemberFacts(name=link.name, container=known)
            said = "the connection broke" if link.lost else f"nothing is heard of it for {duration_text(silent)}"
        plan = self._standing.plan
        goals = [member for member in plan.members if member.name == link.name and said]
        ways = ways_to(self._story.fleet, plan, goals)
        return MemberFacts(
            name=link.name,
            container=container,
            said=said,
            ways=ways.get(link.name, ()),
            disk=self._disks.get(link.name),
            offset=self._offsets.get(link.name, 0.0),
            here=known.here,
        )

    def close(self) -> None:
        """Tell nothing more."""
        self._closed.set()
        for going in self._goings:
            going.end()
        for news in self._news:
            news.set()


class WatchedNodes:
    """What happens to nodes, said on the screen as it does, each thing once; watched until it is closed."""

    def __init__(self, context: ClusterContext, standing: RunningCluster, offsets: Mapping[str, float]) -> None:
        self._story, self._standing = context, standing
        self._told: set[tuple[str, str]] = set()
        self._failures: list[Failure] = []
        self._watch = NodesWatch(context, standing, offsets, self._happened)

    def _happened(self, failure: Failure) -> None:
        self._failures.append(failure)
        self.tell(failure.finding("", first=False))

    def tell(self, finding: Finding) -> None:
        """Say what happened to a node, once."""
        if (finding.where, finding.id) not in self._told:
            self._told.add((finding.where, finding.id))
            self._story.app.say(f"{finding.where}: {finding.title}: {finding.seen}")

    def findings(self) -> tuple[Finding, ...]:
        """Return what happened to nodes, the first first, and say what was not said.

        A node that says nothing is waited for until that is told; where one is gone, what was told meanwhile is all.
        """
        links, until = self._story.fleet.links, time.monotonic() + SILENT_S + _LAST_S
        while time.monotonic() < until and any(self._silent(link) for link in links.values()):
            time.sleep(_PAUSE_S)
        self._watch.look()  # the head may have ended a moment ago, and be why this is asked
        first: dict[str, Failure] = {}  # of a node; what befell it later came of that, or after it
        for failure in self._failures:
            first.setdefault(failure.node, failure)
        found = sort_failures(first.values())
        several = len(found) > 1
        told = tuple(one.finding("", first=several and number == 0) for number, one in enumerate(found))
        if all(link.heard for link in links.values()):
            with contextlib.suppress(RlboxError):
                survey = self._story.survey()
                told = status_here(self._story, survey, self._story.standing(survey) or self._standing).failures
        for one in told:
            self.tell(one)
        return told

    def _silent(self, link: NodeConnection) -> bool:
        """Whether nothing is heard of a node, and that was not told yet."""
        silent = link.lost or link.silent_s() > 3.0
        return silent and not any(one.node == link.name for one in self._failures)

    def close(self) -> None:
        """Watch no more."""
        self._watch.close()
