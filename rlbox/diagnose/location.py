"""On which node and rank a job failed, which ranks were missing, and which log to look at next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlbox.diagnose.candidates import Candidate
from rlbox.diagnose.event_reader import LogEvents
from rlbox.diagnose.lines import LogLine, NumberOrMinus1, parse_line
from rlbox.i18n import _

_WORK = re.compile(r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?(?:OpType=(?P<op>\w+))")
_STATE = re.compile(r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: -?\d")
_WAITED = re.compile(
    r"ran for \d+ milliseconds|Timed out waiting \d+ms for (?:recv|send) operation"
    r"|(?:[tT]imed out|timeout) after \d+ ?(?:ms|s\b|seconds|milliseconds)"
)
_RANK = re.compile(r"\bRank (?P<rank>\d+)\b|\[rank(?P<lane>\d+)\]")
_GROUP = re.compile(r"\bPG (?:ID )?(?P<group>\d+)\b|\((?P<name>[a-z_]+_pg|default_pg)\)")
_ABSENT = re.compile(r"\bRanks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
_PRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+, )?OpType=(\w+)"
    r"(?:, TensorShape=(\[[\d, ]*\]))?"
)


@dataclass(frozen=True, slots=True)
class _CollectiveWait:
    """One message of a watchdog; -1 where it does not say a number."""

    rank: NumberOrMinus1 = -1
    group: str = ""
    operation: str = ""
    call: NumberOrMinus1 = -1
    enqueued: NumberOrMinus1 = -1


def _parse_collective_wait(text: str, default_rank: int = -1) -> _CollectiveWait | None:
    work, state = _WORK.search(text), _STATE.search(text)
    if not (work or state or _WAITED.search(text)):
        return None
    rank, group = _RANK.search(text), _GROUP.search(text)
    return _CollectiveWait(
        rank=int(rank["rank"] or rank["lane"]) if rank else default_rank,
        group=(group["group"] or group["name"]) if group else "",
        operation=work["op"] if work else "",
        call=int(work["seq"]) if work and work["seq"] else -1,
        enqueued=int(state["enqueued"]) if state else -1,
    )


class CollectiveCall(NamedTuple):
    operation: str
    tensor_shape: str


@dataclass(frozen=True, slots=True)
class MissingRanks:
    """The ranks that did not join a collective in which others waited, and how that is known."""

    ranks: tuple[int, ...]
    reason: str


def find_missing_or_odd_ranks(texts: Iterable[str]) -> MissingRanks | None:
    """Return ranks that messages report as missing at a barrier, or in another collective than most."""
    calls: dict[int, CollectiveCall] = {}
    for text in texts:
        if found := _ABSENT.search(text):
            return MissingRanks(tuple(int(rank) for rank in found.group(1).split(",")), "did not come to the barrier")
        calls |= parse_collective_fingerprints_by_rank(text)
    kinds = Counter(calls.values()).most_common()
    if len(kinds) < 2 or kinds[0][1] == kinds[1][1]:
        return None
    odd = tuple(sorted(rank for rank, call in calls.items() if call != kinds[0][0]))
    own, most = calls[odd[0]], kinds[0][0]
    return MissingRanks(odd, f"called {' '.join(own)}, where the others called {' '.join(most)}")


def parse_collective_fingerprints_by_rank(text: str) -> dict[int, CollectiveCall]:
    return {int(rank): CollectiveCall(operation, shape) for rank, operation, shape in _PRINT.findall(text)}


def _infer_missing_ranks(waits: Iterable[_CollectiveWait], other_ranks: Iterable[int] = ()) -> MissingRanks | None:
    """Return the ranks that did not come; None when nothing tells.

    `other_ranks`: Ranks that are known to take part, because they wrote anything.
    """
    rows = [wait for wait in waits if wait.rank >= 0]
    if not rows:
        return None
    calls = {(wait.rank, wait.group): wait for wait in rows if wait.call >= 0}
    groups = Counter(group for _, group in calls)
    for group, count in groups.most_common():
        at = {rank: wait for (rank, own), wait in calls.items() if own == group}
        if count > 1 and (odd := _find_odd_ranks(at)):
            return odd
    behind = {wait.rank: wait.enqueued for wait in rows if wait.enqueued >= 0}
    if len(set(behind.values())) > 1:
        least = min(behind.values())
        late = tuple(sorted(rank for rank, call in behind.items() if call == least))
        return MissingRanks(late, f"got as far as call {least}, the others to call {max(behind.values())}")
    waiting = {wait.rank for wait in rows}
    absent = tuple(sorted(set(other_ranks) - waiting))
    if absent and len(absent) <= len(waiting):
        call = next((wait for wait in rows if wait.operation), None)
        told = f"{call.operation} {call.call}" if call and call.call >= 0 else "the call"
        return MissingRanks(absent, f"did not come to {told}, in which the others waited")
    return None


def _find_odd_ranks(at: dict[int, _CollectiveWait]) -> MissingRanks | None:
    places = Counter((wait.operation, wait.call) for wait in at.values())
    if len(places) < 2:
        return None
    (operation, call), most = places.most_common(1)[0]
    behind = tuple(sorted(rank for rank, wait in at.items() if (wait.operation, wait.call) != (operation, call)))
    if len(behind) >= most:
        behind = tuple(sorted(rank for rank, wait in at.items() if wait.call == min(w.call for w in at.values())))
    own = at[behind[0]]
    return MissingRanks(behind, f"waited in {own.operation} {own.call}, the others in {operation} {call}")


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
_SOURCE = r"/(?=(?:verl|slime|sglang|vllm\w*|megatron|nemo_rl|skyrl\w*|trl|miles)/(?!ex|scr|py|vllm/|verl/|slime/)\w+/)"
"""A checkout of a trainer, without its examples and scripts; a folder that repeats the name is its package."""
_IN_PACKAGE = re.compile(rf"(?:(?:site|dist)-packages/|{_SOURCE})((\w+)/(?:.*/)?\w+\.\w+)$")
_PASSED_OVER = re.compile(r"^<|/lib/python\d[\d.]*/(?!\w+-packages/)|-packages/(?:http\w+|requests|urllib3|aiohttp)/")


@dataclass(slots=True)
class _RankMap:
    """The node of each rank, and the rank of each node's local number."""

    node_by_rank: dict[int, str] = field(default_factory=dict)
    rank_by_node_and_local_rank: dict[tuple[str, int], int] = field(default_factory=dict)
    rank_and_host_by_pid: dict[str, tuple[int | None, str]] = field(default_factory=dict)

    def add_line(self, line: LogLine, default_node: str) -> None:
        node, local = line.host or default_node, _LOCAL.search(line.writer)
        if local and line.writer.endswith(local.group(0)):
            return
        if line.rank >= 0:
            self.node_by_rank.setdefault(line.rank, node)
            if local:
                self.rank_by_node_and_local_rank.setdefault((node, int(local.group(1))), line.rank)


@dataclass(frozen=True, slots=True)
class NodeAndRankOfFailure:
    """Node and rank of a failure as far as known, and the ranks that others waited for."""

    node: str = ""
    rank: int | None = None
    missing: MissingRanks | None = None


@dataclass(frozen=True, slots=True)
class PackageCodeLocation:
    """The code that raised an exception; `where` is `file.py: function` with the package's directory."""

    package: str
    where: str


def find_package_code_unless_user_raised(root: Candidate) -> PackageCodeLocation | None:
    """Return the package code that raised the root's exception; None without a traceback, or when user code raised it.

    Frames of the interpreter and of HTTP clients are passed over: they raise for their caller.
    """
    frames = [frame for one in root.event.exceptions if one.number <= root.line_number for frame in one.frames]
    for frame in reversed(frames):
        if not _PASSED_OVER.search(frame.file):
            found = _IN_PACKAGE.search(frame.file)
            return PackageCodeLocation(found.group(2), f"{found.group(1)}: {frame.function}") if found else None
    return None


def find_failed_node_and_rank(
    root: Candidate, candidates: Sequence[Candidate], logs: Sequence[LogEvents], log_names: Sequence[str]
) -> NodeAndRankOfFailure:
    directories = _list_node_directories(log_names)
    places = _map_ranks(logs, candidates, log_names, directories)
    if missing := _find_missing_ranks(root, candidates, places.node_by_rank):
        return NodeAndRankOfFailure(places.node_by_rank.get(missing.ranks[0], ""), missing.ranks[0], missing)
    own, name = directories[root.event.log_index], log_names[root.event.log_index]
    local = _LOCAL_IN_LINE.search(root.event.log_line.text)
    rank, host = places.rank_and_host_by_pid.get(local[2] if local else "", (None, ""))
    node = _find_late_node(root, candidates, directories) or root.event.log_line.host or host or own
    rank = _find_rank(root, name, node, places) if rank is None else rank
    if rank is not None:
        node = node or places.node_by_rank.get(rank, "")
    return NodeAndRankOfFailure(node or _parse_node(root, name), rank)


def _find_missing_ranks(root: Candidate, candidates: Sequence[Candidate], seen: Iterable[int]) -> MissingRanks | None:
    if root.causal_role != "victim" and not find_missing_or_odd_ranks([root.text]):
        return None
    if named := find_missing_or_odd_ranks(one.text for one in candidates):
        return named
    waits = (
        _parse_collective_wait(text, one.event.log_line.rank)
        for one in candidates
        for text in dict.fromkeys((one.event.text, one.text))
    )
    return _infer_missing_ranks(filter(None, waits), seen)


def _map_ranks(
    reads: Sequence[LogEvents], candidates: Sequence[Candidate], names: Sequence[str], directories: Sequence[str]
) -> _RankMap:
    places = _RankMap()
    for index, read in enumerate(reads):
        if (rank := _parse_rank_in_name(names[index])) is not None:
            places.node_by_rank.setdefault(rank, directories[index])
        marks = (parse_line(mark.line_number, mark.text) for mark in read.progress_marks)
        for line in (*(event.log_line for event in read.events), *marks):
            places.add_line(line, directories[index])
    for candidate in candidates:
        for one in candidate.event.exceptions:
            if one.class_name == "ChildFailedError":
                places.rank_and_host_by_pid.update(_parse_launcher_summary(line for _, line in one.tail))
    return places


def _parse_launcher_summary(lines: Iterable[str]) -> Iterator[tuple[str, tuple[int, str]]]:
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


def _find_late_node(root: Candidate, candidates: Sequence[Candidate], directories: Sequence[str]) -> str:
    if not _GATHERING.search(root.text):
        return ""

    def node_of(candidate: Candidate) -> str:
        return candidate.event.log_line.host or directories[candidate.event.log_index]

    waited = {node_of(one) for one in candidates if _GATHERING.search(one.text)}
    others = ({node_of(one) for one in candidates} | set(directories)) - waited - {""}
    return others.pop() if len(others) == 1 and waited - {""} else ""


def _find_rank(root: Candidate, name: str, node: str, places: _RankMap) -> int | None:
    row = root.event.log_line
    local = _LOCAL.search(row.writer)
    if local and row.writer.endswith(local.group(0)):
        return places.rank_by_node_and_local_rank.get((node, int(local.group(1))), int(local.group(1)))
    if row.rank >= 0:
        return row.rank
    if found := _RANK_IN_LINE.search(row.text) or _RANK_IN_LINE.search(root.text):
        return int(next(group for group in found.groups() if group))
    if (rank := _parse_rank_in_name(name)) is not None:
        return rank
    found = _LOCAL_IN_LINE.search(row.text)
    return places.rank_by_node_and_local_rank.get((node, int(found.group(1))), int(found.group(1))) if found else None


def _parse_rank_in_name(name: str) -> int | None:
    found = _RANK_IN_NAME.search(name.rpartition("/")[2])
    return int(found.group(1) or found.group(2)) if found else None


def _parse_node(root: Candidate, name: str) -> str:
    for text in (root.event.log_line.text, root.text, *(line for __, line in root.event.tail)):
        if found := _NODE_IN_LINE.search(text):
            return next(group for group in found.groups() if group)
    found = _NODE_IN_NAME.search("/".join(name.split("/")[-2:]))
    return found.group(1) if found else ""


def _list_node_directories(names: Sequence[str]) -> list[str]:
    """Return for each log the first directory in which the names differ; empty when none does."""
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


def describe_log_to_fetch_or_empty(root: Candidate, location: NodeAndRankOfFailure) -> str:
    """Return for example `stderr of rank 2`; empty when the root cause itself is in the logs."""
    if root.causal_role == "root":
        return ""
    if location.missing:
        told = ", ".join(map(str, location.missing.ranks[:8]))
        at = _(" on node {node}").format(node=location.node) if location.node else ""
        missing = _("stderr of rank {ranks}{at}, which {reason}")
        return missing.format(ranks=told, at=at, reason=location.missing.reason)
    text = root.event.log_line.text
    if found := _CHILD.search(text):
        return _("stderr of local rank {rank} (pid {pid})").format(rank=found.group(1), pid=found.group(2))
    if found := _PEER.search(text):
        return _("stderr of the process at {address}").format(address=found.group(1) or found.group(2))
    if root.causal_role == "victim" and root.event.log_line.rank >= 0:
        return _("stderr of the ranks other than {rank}, on all nodes").format(rank=root.event.log_line.rank)
    if found := _ACTOR.search(text):
        at = _(" on node {node}").format(node=found.group(2)) if found.group(2) else ""
        return _("worker-*-{worker}.err in Ray's session folder{at}").format(worker=found.group(1), at=at)
    if _ENGINE.search(text):
        return _("stderr of the engine's own process, from before this line")
    return _("stderr of the process that ended first, from before this line")
