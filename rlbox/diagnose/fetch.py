"""Which log to look at when those that are there hold only consequences."""

from __future__ import annotations

import re

from rlbox.diagnose.assess import Case
from rlbox.diagnose.where import Place

_CHILD = re.compile(r"local_rank: (\d+) \(pid: (\d+)\)")
_ACTOR = re.compile(r"\(pid=(\d+)(?:, ip=([\w.:-]+))?")
_PEER = re.compile(r"by (?:remote )?peer \[?([\w.:]+?)\]?(?::\d+)?(?:$|[\s,])|remote=\[?([\w.:]+)")
_ENGINE = re.compile(r"EngineCore|Engine core|WorkerProc|VllmWorker|[sS]cheduler|detokenizer")


def log_to_fetch(root: Case, place: Place) -> str:
    """Return what to look at next, `stderr of rank 2`; empty where the root itself is in the logs."""
    if root.cls == "root":
        return ""
    if place.missing:
        told = ", ".join(map(str, place.missing.ranks[:8]))
        at = f" on node {place.node}" if place.node else ""
        return f"stderr of rank {told}{at}, which {place.missing.what}"
    text = root.event.row.text
    if found := _CHILD.search(text):
        return f"stderr of local rank {found.group(1)} (pid {found.group(2)})"
    if found := _PEER.search(text):
        return f"stderr of the process at {found.group(1) or found.group(2)}"
    if root.cls == "victim" and root.event.row.rank >= 0:
        return f"stderr of the ranks other than {root.event.row.rank}, on all nodes"
    if found := _ACTOR.search(text):
        at = f" on {found.group(2)}" if found.group(2) else ""
        return f"worker-*-{found.group(1)}.err of Ray's session folder{at}"
    if _ENGINE.search(text):
        return "stderr of the engine's own process, from before this line"
    return "stderr of the process that ended first, from before this line"
