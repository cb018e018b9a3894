"""The nodes of the cluster that a run is on, asked from its head whether they are there, long before Ray tells it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial

from rlbox.amounts import duration_text
from rlbox.diagnose.cause import Cause
from rlbox.job.plan import ClusterRun, NodePlan, StagePlan
from rlbox.supervise.causes import lost_node
from rlbox.system.poller import Poller

_PAUSE_S, _CONNECT_S = 0.5, 3.0
_REFUSED, _SILENT, _SILENT_S = 2, 3, 10.0
"""How often in a row a node refuses before its Ray counts as ended; how often and how long it says nothing."""

_SETTLE_S, _LOOK_S = 4.0, 0.1
"""How long after a failed stage a node may still be found gone, and be named as what failed first."""


class _NodeProbe:
    """What one node has answered so far; another thread asks it again and again."""

    def __init__(self, node: NodePlan) -> None:
        self.node, self.good_at = node, time.monotonic()
        self._refused = self._silent = 0
        self._bad_at = 0.0

    def knock(self) -> None:
        """Try a connection to the node's Ray."""
        begun = time.monotonic()
        try:
            socket.create_connection((self.node.address, self.node.port), _CONNECT_S).close()
        except ConnectionRefusedError:
            self._refused, self._silent = self._refused + 1, 0
        except OSError:
            self._bad_at = self._bad_at if self._silent else begun
            self._refused, self._silent = 0, self._silent + 1
        else:
            self._refused = self._silent = 0
            self.good_at = time.monotonic()

    @property
    def seen(self) -> str:
        """Why the node counts as gone; empty while it does not."""
        where = f"{self.node.address}:{self.node.port}"
        if self._refused >= _REFUSED:
            return f"its Ray has ended, nothing takes connections at {where} any more"
        silent_s = time.monotonic() - self._bad_at
        if self._silent >= _SILENT and silent_s >= _SILENT_S:
            return f"{where} has not answered for {duration_text(silent_s)}: it is off, or a cable to it is cut"
        return ""


class NodeMonitor:
    """Knocks at the nodes of a run's cluster until it is closed; without a cluster there are none."""

    def __init__(self, run: str, cluster: ClusterRun | None) -> None:
        self._run, self._cluster = run, cluster
        self._nodes = tuple(map(_NodeProbe, cluster.nodes if cluster else ()))
        self._pollers = [Poller(partial(_NodeProbe.knock, one), _PAUSE_S, lambda answer: False) for one in self._nodes]

    def find_lost_node(self, stage: StagePlan, then: str = "") -> Cause | None:
        """Return why a stage cannot go on: a node that is gone, of several the one that was last heard of first."""
        gone = [(one.good_at, one.node, seen) for one in self._nodes if (seen := one.seen)]
        if not gone or self._cluster is None:
            return None
        _, node, seen = min(gone, key=lambda one: one[0])
        return lost_node(stage, node, seen, self._cluster, self._run, then)

    def await_lost_node(self, stage: StagePlan, then: str, stopped: Callable[[], bool]) -> Cause | None:
        """As `lost`, of a stage that failed: each node has the time to answer once more, or not to."""
        begun = time.monotonic()
        while any(one.good_at < begun for one in self._nodes) and time.monotonic() - begun < _SETTLE_S:
            if (cause := self.find_lost_node(stage, then)) or stopped():
                return cause
            time.sleep(_LOOK_S)
        return self.find_lost_node(stage, then)

    def close(self) -> None:
        """Knock no more."""
        for poller in self._pollers:
            poller.close()
