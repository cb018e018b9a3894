"""Watch a cluster that is used: ends of containers as engines tell them, nodes that fall silent, disks that fill."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from rlbox.cluster.act.reach.fleet import Fleet
from rlbox.cluster.act.reach.link import Going, Link
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.verdict import OURS, SILENT_S, Loss, loss_of_container, loss_of_disk
from rlbox.errors import RlboxError

_LEAST_DISK = 64 << 20
_REACH_S = 6.0


class FleetWatch:
    """Tells losses as they come; `offsets` are seconds that the clocks of nodes are ahead of this machine's."""

    def __init__(self, fleet: Fleet, plan: ClusterPlan, offsets: dict[str, float]) -> None:
        self._fleet, self._plan, self._offsets = fleet, plan, offsets
        self._heard: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._told: set[tuple[str, str]] = set()
        self._goings: list[Going] = []
        for link in fleet.links.values():
            going = link.start("watch", id=plan.id, disk=link.wish.data, least=_LEAST_DISK)
            self._goings.append(going)
            threading.Thread(target=self._listen, args=(link, going), name=f"ends on {link.name}", daemon=True).start()

    def _listen(self, link: Link, going: Going) -> None:
        try:
            for row in going:
                self._heard.put((link.name, row))
        except RlboxError:  # the connection broke: what that means is asked of the others
            return

    def close(self) -> None:
        """Stop watching."""
        for going in self._goings:
            going.end()

    def poll(self) -> list[Loss]:
        """Return what happened since the last time."""
        found = []
        while not self._heard.empty():
            node, row = self._heard.get()
            at = float(row.get("at", 0)) - self._offsets.get(node, 0.0)
            if "ended" in row:
                found.append(loss_of_container(node, row["ended"], at))
            elif row.get("low") or row.get("disk", 0) < 0:
                found.append(loss_of_disk(node, int(row["disk"]), at))
        found += self._silent()
        new = [loss for loss in found if (loss.node, loss.kind) not in self._told]
        self._told.update((loss.node, loss.kind) for loss in new)
        return new

    def _silent(self) -> list[Loss]:
        """Return nodes that say nothing any more, as far as another node could be asked for them."""
        quiet = [link for link in self._fleet.links.values() if link.lost or link.silent_s() > SILENT_S]
        others = [link for link in self._fleet.links.values() if link not in quiet]
        at = time.time()
        return [
            Loss(node=link.name, kind=self._kind(link, others), at=at - link.silent_s())
            for link in quiet
            if not self._told & {(link.name, "gone"), (link.name, OURS)}
        ]

    def _kind(self, quiet: Link, others: list[Link]) -> str:
        """Return what is wrong with a silent node: gone, if another that answers does not reach it; else it is us."""
        member = self._plan.member(quiet.name)
        if member is None or not others:
            return OURS
        ports = [self._plan.ports.of("node-manager"), self._plan.ports.of("object-manager")]
        try:
            told = others[0].ask("reach", timeout_s=_REACH_S, goals=[(member.address, p) for p in ports], word="")
        except RlboxError:
            return OURS
        words = [str(row["said"]) for row in told["reached"]]
        # one that refuses is on, and its Ray is not: that is told by its engine, or not at all
        return OURS if any(not said or "refused" in said for said in words) else "gone"
