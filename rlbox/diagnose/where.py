"""On which node and rank a failure is, by its line and by the name of its log."""

from __future__ import annotations

import re

from rlbox.diagnose.assess import Case

_RANK_IN_LINE = re.compile(r"(?i)\[rank ?(\d+)\]|\brank[ =:]+(\d+)\b|\blocal_rank: ?(\d+)")
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:rank|r|proc|worker)[-_.]?(\d{1,5})(?=[^\d]|$)")
_NODE_IN_NAME = re.compile(r"(?i)(?:^|[/_.-])((?:node|host|head|worker|gpu|n)[-_]?\w*\d\w*)(?=[/_.-])")
_NODE_IN_LINE = re.compile(r"\bip=([\w.:-]+)|\bhost +: +([\w.-]+)|on node ([\w.-]+)|\(IP: ([\d.]+)")


def rank_of(case: Case, name: str) -> int | None:
    """Return the rank that failed; None where nothing says it. `name` is that of the log."""
    row = case.event.row
    if row.rank >= 0:
        return row.rank
    if found := _RANK_IN_LINE.search(row.text) or _RANK_IN_LINE.search(case.text):
        return int(next(group for group in found.groups() if group))
    found = _RANK_IN_NAME.search(name)
    return int(found.group(1)) if found else None


def node_of(case: Case, name: str) -> str:
    """Return the node that failed, by name or address; empty where nothing says it."""
    row = case.event.row
    if row.host:
        return row.host
    for text in (row.text, case.text, *(line for _, line in case.event.tail)):
        if found := _NODE_IN_LINE.search(text):
            return next(group for group in found.groups() if group)
    found = _NODE_IN_NAME.search(name)
    return found.group(1) if found else ""
