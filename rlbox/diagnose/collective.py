"""What the watchdogs of collectives say, computed with: who waited where since when, and which rank did not come."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_WORK = re.compile(r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?(?:OpType=(?P<op>\w+))")
_RAN = re.compile(r"ran for (?P<ms>\d+) milliseconds")
_STATE = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_RANK = re.compile(r"\bRank (?P<rank>\d+)\b|\[rank(?P<lane>\d+)\]")
_GROUP = re.compile(r"\bPG (?:ID )?(?P<group>\d+)\b|\((?P<name>[a-z_]+_pg|default_pg)\)")
_GLOO_MS = re.compile(r"Timed out waiting (\d+)ms for (?:recv|send) operation")
_ABSENT = re.compile(r"\bRanks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
_PRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+, )?OpType=(\w+)"
    r"(?:, TensorShape=(\[[\d, ]*\]))?"
)
_STORE_MS = re.compile(r"(?:[tT]imed out|timeout) after (?P<n>\d+) ?(?P<unit>ms|s\b|seconds|milliseconds)")


@dataclass(frozen=True, slots=True)
class Wait:
    """What one line of a watchdog says: the rank that waited (-1: unsaid), in which call, how long, how far it was."""

    rank: int = -1
    group: str = ""
    operation: str = ""
    call: int = -1
    waited_s: float = 0.0
    enqueued: int = -1
    completed: int = -1


def wait_of(text: str, of: int = -1) -> Wait | None:
    """Return what a line, of the rank `of` where it does not say, says of a wait; None when it says nothing of one."""
    work, ran, state = _WORK.search(text), _RAN.search(text), _STATE.search(text)
    store, gloo = _STORE_MS.search(text), _GLOO_MS.search(text)
    if not (work or ran or state or store or gloo):
        return None
    rank, group = _RANK.search(text), _GROUP.search(text)
    waited = float(ran["ms"]) / 1000 if ran else 0.0
    if store and not waited:
        waited = float(store["n"]) / (1000 if store["unit"] in ("ms", "milliseconds") else 1)
    if gloo:
        waited = float(gloo.group(1)) / 1000
    return Wait(
        rank=int(rank["rank"] or rank["lane"]) if rank else of,
        group=(group["group"] or group["name"]) if group else "",
        operation=work["op"] if work else "",
        call=int(work["seq"]) if work and work["seq"] else -1,
        waited_s=waited,
        enqueued=int(state["enqueued"]) if state else -1,
        completed=int(state["completed"]) if state else -1,
    )


@dataclass(frozen=True, slots=True)
class Missing:
    """The ranks that did not come to a call which the others waited in, and why that is known."""

    ranks: tuple[int, ...]
    what: str


def absent_in(texts: Iterable[str]) -> Missing | None:
    """Return the ranks that messages name themselves: as absent from a barrier, or in another call than most."""
    calls: dict[int, tuple[str, str]] = {}
    for text in texts:
        if found := _ABSENT.search(text):
            return Missing(tuple(int(rank) for rank in found.group(1).split(",")), "did not come to the barrier")
        calls |= calls_of(text)
    kinds = Counter(calls.values()).most_common()
    if len(kinds) < 2 or kinds[0][1] == kinds[1][1]:
        return None
    odd = tuple(sorted(rank for rank, call in calls.items() if call != kinds[0][0]))
    own, most = calls[odd[0]], kinds[0][0]
    return Missing(odd, f"called {' '.join(own)}, where the others called {' '.join(most)}")


def calls_of(text: str) -> dict[int, tuple[str, str]]:
    """Return the collective and the shape that ranks were in, as a message tells which compares them."""
    return {int(rank): (operation, shape) for rank, operation, shape in _PRINT.findall(text)}


def find_missing(waits: Iterable[Wait], others: Iterable[int] = ()) -> Missing | None:
    """Return the ranks that did not come; None when nothing tells.

    Parameters
    ----------
    others
        Ranks that are known to take part, because they wrote anything.
    """
    rows = [wait for wait in waits if wait.rank >= 0]
    if not rows:
        return None
    calls = {(wait.rank, wait.group): wait for wait in rows if wait.call >= 0}
    groups = Counter(group for _, group in calls)
    for group, count in groups.most_common():
        at = {rank: wait for (rank, own), wait in calls.items() if own == group}
        if count > 1 and (odd := _odd(at)):
            return odd
    behind = {wait.rank: wait.enqueued for wait in rows if wait.enqueued >= 0}
    if len(set(behind.values())) > 1:
        least = min(behind.values())
        late = tuple(sorted(rank for rank, call in behind.items() if call == least))
        return Missing(late, f"got as far as call {least}, the others to call {max(behind.values())}")
    waiting = {wait.rank for wait in rows}
    absent = tuple(sorted(set(others) - waiting))
    if absent and len(absent) <= len(waiting):
        call = next((wait for wait in rows if wait.operation), None)
        told = f"{call.operation} {call.call}" if call and call.call >= 0 else "the call"
        return Missing(absent, f"did not come to {told}, in which the others waited")
    return None


def _odd(at: dict[int, Wait]) -> Missing | None:
    """Return the ranks that wait in another call than most."""
    places = Counter((wait.operation, wait.call) for wait in at.values())
    if len(places) < 2:
        return None
    (operation, call), most = places.most_common(1)[0]
    behind = tuple(sorted(rank for rank, wait in at.items() if (wait.operation, wait.call) != (operation, call)))
    own = at[behind[0]]
    if len(behind) >= most:
        behind = tuple(sorted(rank for rank, wait in at.items() if wait.call == min(w.call for w in at.values())))
        own = at[behind[0]]
    return Missing(behind, f"waited in {own.operation} {own.call}, the others in {operation} {call}")
