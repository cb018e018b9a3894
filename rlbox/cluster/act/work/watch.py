"""Watch the nodes of a cluster while something runs on it: what happens to one is known long before Ray tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from rlbox.amounts import duration_text
from rlbox.cluster.act.carry import lives_of
from rlbox.cluster.act.reach.link import SILENT_S, NodeLink
from rlbox.cluster.act.status import ways_to
from rlbox.cluster.act.story import StandingCluster, Story
from rlbox.cluster.facts import ClusterContainer, container_of
from rlbox.cluster.judge.failures import Failure, MemberFacts, judge_failures
from rlbox.errors import RlboxError

_LOOK_S, _ANSWER_S = 1.0, 5.0


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
        self, story: Story, standing: StandingCluster, offsets: Mapping[str, float], tell: Callable[[Failure], None]
    ) -> None:
        self._story, self._standing, self._offsets, self._tell = story, standing, offsets, tell
        self._told: set[tuple[str, str]] = set()
        self._closed = threading.Event()
        for name, link in story.fleet.links.items():
            if name in standing.containers:
                threading.Thread(target=self._look, args=(link,), name=f"watch of {name}", daemon=True).start()

    def _look(self, link: NodeLink) -> None:
        while not self._closed.wait(_LOOK_S):
            for failure in judge_failures([self._member(link)]):
                if not self._closed.is_set() and (failure.node, failure.id) not in self._told:
                    self._told.add((failure.node, failure.id))
                    self._tell(failure)

    def _member(self, link: NodeLink) -> MemberFacts:
        known = self._standing.containers[link.name]
        container: ClusterContainer | None = known
        said = ""
        try:
            rows = lives_of(link, self._standing.plan, _ANSWER_S) if not link.lost else None
            container = next((container_of(row) for row in rows or () if row["id"] == known.id), None)
        except RlboxError:
            rows = None
        if rows is None:
            silent = link.silent_s()
            if not link.lost and silent < SILENT_S:  # slow, and no more
                return MemberFacts(name=link.name, container=known)
            said = f"nothing is heard of it for {duration_text(silent)}"
        plan = self._standing.plan
        goals = [member for member in plan.members if member.name == link.name and said]
        ways = ways_to(self._story.fleet, plan, goals)
        return MemberFacts(
            name=link.name,
            container=container,
            said=said,
            ways=ways.get(link.name, ()),
            offset=self._offsets.get(link.name, 0.0),
            here=known.here,
        )

    def close(self) -> None:
        """Tell nothing more."""
        self._closed.set()
