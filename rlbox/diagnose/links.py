"""How the failures of a job follow from its root: what is told as the chain, and what is another story."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlbox.diagnose.assess import Case
from rlbox.diagnose.read.classes import Class, class_of
from rlbox.diagnose.timeline import in_order, precedes

Why = Literal["", "same-lane", "quoted", "collective", "kill-order", "time"]

_COLLECTIVE = re.compile(
    r"NCCL|nccl|[gG]loo|collective|TCPStore|rendezvous|c10d|[wW]atchdog|monitoredBarrier|DistStore|barrier"
)
_KILLED = re.compile(
    r"SIGTERM|SIGKILL|SIGQUIT|sigquit|closing signal|death signal|exit ?code|Exited|killed|Killed|signal"
)
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LEAST_QUOTE = 16
_BEFORE = 200
"""Lines before the root within which a launcher may have told of an end: it speaks before whoever fell is heard."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step of the chain: a failure, why it follows, and from which step before (-1: it is the root)."""

    case: Case
    why: Why
    of: int

    @property
    def kind(self) -> Class:
        """The class of a step: the first is the root, whatever it would be in other logs; a wrapper is none."""
        if self.of < 0:
            return "root"
        return "relayed" if self.case.wraps and self.case.cls == "root" else self.case.cls


def chain_of(
    root: Case, cases: Sequence[Case], noise: Sequence[Case] = ()
) -> tuple[list[Link], list[Case], list[Case]]:
    """Return the chain, the root first; the failures that are stories of their own; and the noise of which no step is.

    What was said too softly to be a failure is a step all the same where it tells of an end: a launcher that ends the
    other processes says so as a warning.
    """
    chain = [Link(root, "", -1)]
    apart: list[Case] = []
    echoes = {id(case): echo for case in noise if (echo := _echo(case, root))}
    for case in in_order([*cases, *echoes.values()]) if echoes else cases:
        if case is root:
            continue
        link = _link(case, root, chain)
        if link:
            chain.append(link)
        else:
            apart.append(case)
    return chain, apart, [case for case in noise if id(case) not in echoes]


def _echo(case: Case, root: Case) -> Case | None:
    """Return what a line of a low level tells of an end that somebody was given, or of a peer that is gone."""
    if case.why_not != "level" or case.event.raised or (case.match and case.match.signature.role == "benign"):
        return None
    if case.event.file == root.event.file and root.event.begun - case.event.last > _BEFORE:
        return None
    cls = class_of(case.text, case.kind)
    if cls == "death" or (cls == "victim" and not _is_before(case, root)):
        return replace(case, cls=cls)
    return None


def _link(case: Case, root: Case, chain: list[Link]) -> Link | None:
    if (place := _quoted(case, chain)) >= 0:
        return Link(case, "quoted", place)
    if case.wraps and case.cause and case.cause == root.cause and not _is_before(case, root):
        return Link(case, "quoted", 0)
    own = [index for index, link in enumerate(chain) if _same_lane(link.case, case)]
    if own and not _is_before(case, root):
        return Link(case, "same-lane", own[-1])
    if case.cls == "root" and case.score >= 1 and case.cause != root.cause:
        return None if case.match or _is_before(case, root) else Link(case, "time", 0)
    if case.cls in ("victim", "relayed", "root") and _COLLECTIVE.search(case.text):
        return Link(case, "collective", 0)
    if case.cls in ("death", "victim") and _KILLED.search(case.text):
        return Link(case, "kill-order", 0)
    return Link(case, "time", 0)


def _quoted(case: Case, chain: list[Link]) -> int:
    """Return the place in the chain of what a failure repeats word by word; -1 when it repeats nothing."""
    text = _plain(" ".join((case.event.text, case.text, *(line for _, line in case.event.tail))))
    for index, link in enumerate(chain):
        said = _message(link.case.text)
        if len(said) >= _LEAST_QUOTE and said in text:
            return index
    return -1


def _message(text: str) -> str:
    return _plain(text.partition(": ")[2] or text)[:80]


def _plain(text: str) -> str:
    return _DIGITS.sub("0", text)


def _same_lane(one: Case, other: Case) -> bool:
    return one.event.file == other.event.file and one.event.lane == other.event.lane


def _is_before(case: Case, root: Case) -> bool:
    return precedes(case, root)
