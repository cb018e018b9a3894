"""On which node and rank a job failed, which ranks were missing, and which log to look at next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rlbox.diagnose.candidates import Case
from rlbox.diagnose.event_reader import Read
from rlbox.diagnose.lines import LogRow, read_row

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


_RANK_IN_LINE = re.compile(r"(?i)\[rank ?(\d+)\]|\brank[ =:]+(\d+)\b")
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:rank|proc|worker)[-_.]?(\d{1,5})(?=[^\d]|$)|(?:^|/)r(\d{1,5})\.\w+$")
_NODE_IN_LINE = re.compile(r"\bip=([\w.:-]+)|\bhost +: +([\w.-]+)|on node ([\w.-]+)|\(IP: ([\d.]+)")
_NODE_IN_NAME = re.compile(r"(?i)(?:^|[/_.-])((?:node|host|head|gpu)[-_]?\w*\d[\w-]*)(?=[/_.-])")
_NO_NODE = re.compile(r"(?i)^(?:rank|proc|worker|attempt|std|log|output|run|session|job|\d+$)|log$")
_LOCAL = re.compile(r"\bdefault(\d+)\b")
_LOCAL_IN_LINE = re.compile(r"\blocal_rank: ?(\d+)(?: \(pid: (\d+)\))?")
_GATHERING = re.compile(r"waiting for clients|clients joined|RendezvousTimeoutError|store based barrier")
"""What a process says that waited for others at the start of a job."""
_SUMMED = re.compile(r"^(host|rank|exitcode) +: +(.*)$")
_IN_PACKAGE = re.compile(r"(?:site|dist)-packages/((\w+)/(?:.*/)?\w+\.\w+)$")
_PACKAGES = re.compile(r"(?:site|dist)-packages/")
_INTERPRETER = re.compile(r"^<|/lib/python\d[\d.]*/")


@dataclass(slots=True)
class RankPlaces:
    """What the logs say of where ranks are: the node of each, and which rank a node's local number is."""

    nodes: dict[int, str] = field(default_factory=dict)
    ranks: dict[tuple[str, int], int] = field(default_factory=dict)
    pids: dict[str, tuple[int, str]] = field(default_factory=dict)

    def see(self, row: LogRow, folder: str) -> None:
        """Take what a line's prefixes say."""
        node, local = row.host or folder, _LOCAL.search(row.lane)
        if local and row.lane.endswith(local.group(0)):
            return
        if row.rank >= 0:
            self.nodes.setdefault(row.rank, node)
            if local:
                self.ranks.setdefault((node, int(local.group(1))), row.rank)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job failed: node (empty) and rank (None) as far as known, and the ranks that others waited for."""

    node: str = ""
    rank: int | None = None
    missing: Missing | None = None


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """The code that raised an exception: the package as it is imported, and `file.py: function` below its parent."""

    package: str
    where: str


def find_raising_code(root: Case) -> CodeLocation | None:
    """Return the package code that raised the root's exception; None without a traceback, or when user code raised it.

    Frames of the interpreter are passed over: `json` raises for whoever calls it.
    """
    frames = [frame for one in root.event.raised if one.number <= root.number for frame in one.frames]
    for frame in reversed(frames):
        if found := _IN_PACKAGE.search(frame.file):
            return CodeLocation(found.group(2), f"{found.group(1)}: {frame.function}")
        if _PACKAGES.search(frame.file) or not _INTERPRETER.search(frame.file):
            return None
    return None


def place_of(root: Case, cases: Sequence[Case], reads: Sequence[Read], names: Sequence[str]) -> Place:
    """Return where a job failed; `names` are those of its logs."""
    folders = _folders(names)
    places = _places(reads, cases, names, folders)
    if missing := _missing(root, cases, places.nodes):
        return Place(places.nodes.get(missing.ranks[0], ""), missing.ranks[0], missing)
    own, name = folders[root.event.file], names[root.event.file]
    node, rank = _of_process(root, places)
    node = _late_node(root, cases, folders) or root.event.row.host or node or own
    rank = rank if rank is not None else _rank_of(root, name, node, places)
    if rank is not None:
        node = node or places.nodes.get(rank, "")
    return Place(node or _node_in(root, name), rank)


def _missing(root: Case, cases: Sequence[Case], seen: Iterable[int]) -> Missing | None:
    """Return the ranks that did not come to a collective; None when nobody waited, or nothing tells."""
    if root.cls != "victim" and not absent_in([root.text]):
        return None
    if named := absent_in(case.text for case in cases):
        return named
    waits = []
    for case in cases:
        for text in {case.event.text, case.text}:
            if wait := wait_of(text, case.event.row.rank):
                waits.append(wait)
    return find_missing(waits, seen)


def _places(reads: Sequence[Read], cases: Sequence[Case], names: Sequence[str], folders: Sequence[str]) -> RankPlaces:
    places = RankPlaces()
    for index, read in enumerate(reads):
        if (rank := _rank_in(names[index])) is not None:
            places.nodes.setdefault(rank, folders[index])
        for row in _rows(read):
            places.see(row, folders[index])
    for case in cases:
        for one in case.event.raised:
            if one.kind == "ChildFailedError":
                places.pids.update(_summed(line for _, line in one.tail))
    return places


def _rows(read: Read) -> Iterator[LogRow]:
    for event in read.events:
        yield event.row
    for mark in read.marks:
        yield read_row(mark.number, mark.text)


def _summed(lines: Iterable[str]) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield rank and host of each process that torchrun's summary lists, by its pid."""
    said: dict[str, str] = {}
    for line in lines:
        if found := _SUMMED.match(line):
            said[found.group(1)] = found.group(2)
        if found and found.group(1) == "exitcode":
            pid = re.search(r"pid: (\d+)", found.group(2))
            rank = re.match(r"\d+", said.get("rank", ""))
            if pid and rank:
                yield pid.group(1), (int(rank.group()), said.get("host", ""))
            said = {}


def _late_node(root: Case, cases: Sequence[Case], folders: Sequence[str]) -> str:
    """Return the node that did not come while the others waited for it at the start; empty where not one is left."""
    if not _GATHERING.search(root.text):
        return ""

    def node_of(case: Case) -> str:
        return case.event.row.host or folders[case.event.file]

    waited = {node_of(case) for case in cases if _GATHERING.search(case.text)}
    others = ({node_of(case) for case in cases} | set(folders)) - waited - {""}
    return others.pop() if len(others) == 1 and waited - {""} else ""


def _of_process(root: Case, places: RankPlaces) -> tuple[str, int | None]:
    """Return node and rank of a process that its launcher names by pid."""
    found = _LOCAL_IN_LINE.search(root.event.row.text)
    if found and found.group(2) in places.pids:
        rank, host = places.pids[found.group(2)]
        return host, rank
    return "", None


def _rank_of(root: Case, name: str, node: str, places: RankPlaces) -> int | None:
    row = root.event.row
    local = _LOCAL.search(row.lane)
    if local and row.lane.endswith(local.group(0)):
        return places.ranks.get((node, int(local.group(1))), int(local.group(1)))
    if row.rank >= 0:
        return row.rank
    if found := _RANK_IN_LINE.search(row.text) or _RANK_IN_LINE.search(root.text):
        return int(next(group for group in found.groups() if group))
    if (rank := _rank_in(name)) is not None:
        return rank
    found = _LOCAL_IN_LINE.search(row.text)
    return places.ranks.get((node, int(found.group(1))), int(found.group(1))) if found else None


def _rank_in(name: str) -> int | None:
    found = _RANK_IN_NAME.search(name.rpartition("/")[2])
    return int(found.group(1) or found.group(2)) if found else None


def _node_in(root: Case, name: str) -> str:
    for text in (root.event.row.text, root.text, *(line for _, line in root.event.tail)):
        if found := _NODE_IN_LINE.search(text):
            return next(group for group in found.groups() if group)
    found = _NODE_IN_NAME.search("/".join(name.split("/")[-2:]))
    return found.group(1) if found else ""


def _folders(names: Sequence[str]) -> list[str]:
    """Return the folder of each log that tells nodes apart: the first in which names differ; empty where none does."""
    parts = [name.split("/")[:-1] for name in names]
    for depth in range(max((len(one) for one in parts), default=0)):
        here = [one[depth] if len(one) > depth else "" for one in parts]
        if len(set(here)) > 1:
            return ["" if _NO_NODE.search(one) else one for one in here]
    return [""] * len(names)


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
