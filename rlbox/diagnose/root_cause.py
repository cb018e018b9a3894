"""Which event broke first, on one timeline of all logs, and how the other failures follow from it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal

from rlbox.diagnose.candidates import Case, assess, is_last_word, survived, works_on
from rlbox.diagnose.clock import ClockTime, in_year, moment_of
from rlbox.diagnose.event_reader import Read
from rlbox.diagnose.events import Event, is_logged
from rlbox.diagnose.location import absent_in, calls_of
from rlbox.diagnose.patterns import LAST_WORD, PERHAPS, Class, Mark, class_of, is_never_fatal, words_of
from rlbox.diagnose.signatures import SignatureSet

SAME_S = 1.0
"""Clocks that are no further apart say nothing of an order: many are written to a second."""
_FINE_S = 0.002
_UNKNOWN_S = float("inf")
_STEP = re.compile(r"(?:global_step|step|iteration|Epoch)[ :=]{1,3}(\d+)", re.IGNORECASE)
_NUMBERS = re.compile(r"(\d{1,18})")
_SHARED_MOST = 200
_SKEW_LEAST_S = 2.0


class Timeline:
    """The times of several logs brought together; `skews_s`: how far each log's clock is ahead of the first one's.

    `turns` are the places of the logs by their names, numbers in these as numbers: which log was named first says
    nothing of what came first, and another order of the same logs is to give the same root.
    """

    def __init__(self, reads: Sequence[Read], names: Sequence[str] = ()) -> None:
        self._year = _year_of(reads)
        self._reads = reads
        named = sorted(range(len(reads)), key=lambda place: _by_number(names[place])) if names else range(len(reads))
        self.turns = dict(zip(named, range(len(reads)), strict=True))
        self.skews_s = self._skews()

    def time_of(self, case: Case) -> tuple[float, float] | None:
        """Return when a failure was told, in seconds of the first log's clock, and how far that may be off.

        A line without a clock was written after the one above it that has one; how long after is not known.
        """
        event = case.event
        own = next((clock for clock in (event.row.clock, *(one.clock for one in event.raised)) if clock), "")
        at = self._at(own or event.near)
        if at is None:
            return None
        off_s = _UNKNOWN_S if not own else _FINE_S if "." in own or "," in own else SAME_S
        return at - self.skews_s[event.file], off_s

    def _at(self, clock: str) -> float | None:
        moment = moment_of(clock) if clock else None
        return in_year(moment, self._year) if moment else None

    def _skews(self) -> list[float]:
        """Return how far each clock is ahead, by what several logs tell of: the same step of a training."""
        if len(self._reads) < 2:
            return [0.0] * len(self._reads)
        from statistics import median  # 10 ms of modules, which who reads one log need not wait for

        steps = [self._steps(read.marks) for read in self._reads]
        first = max(range(len(steps)), key=lambda index: len(steps[index]))
        skews = []
        for own in steps:
            shared = sorted(own.keys() & steps[first].keys())[:_SHARED_MOST]
            apart = median(own[key] - steps[first][key] for key in shared) if shared else 0.0
            skews.append(apart if abs(apart) >= _SKEW_LEAST_S else 0.0)
        return [skew - skews[0] for skew in skews]

    def _steps(self, marks: Sequence[Mark]) -> dict[str, float]:
        found: dict[str, float] = {}
        for mark in marks:
            step = _STEP.search(mark.text)
            at = self._at(mark.clock) if mark.clock and step else None
            if step and at is not None:
                found.setdefault(step.group(1), at)
        return found


def is_told(one: Case, other: Case) -> bool:
    """Whether clocks tell which of two failures came first."""
    if one.time is None or other.time is None:
        return False
    return abs(one.time[0] - other.time[0]) > max(one.time[1], other.time[1])


def precedes(one: Case, other: Case) -> bool:
    """Whether a failure came before another one, as far as clocks and the order of lines tell."""
    same_file = one.event.file == other.event.file
    if same_file and one.event.lane == other.event.lane:
        return one.event.begun < other.event.begun
    if one.time is not None and other.time is not None:
        apart_s, off_s = one.time[0] - other.time[0], max(one.time[1], other.time[1])
        if abs(apart_s) > off_s or (not same_file and apart_s):
            return apart_s < 0
    if same_file:
        return one.event.begun < other.event.begun
    return (one.turn, one.event.begun) < (other.turn, other.event.begun)


def first_of(cases: Sequence[Case]) -> Case:
    """Return the failure that came first."""
    best = cases[0]
    for case in cases[1:]:
        if precedes(case, best):
            best = case
    return best


def in_order(cases: Sequence[Case]) -> list[Case]:
    """Return failures in the order in which they came: by clocks where there are some, else as they stand."""
    by_file: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_file[case.event.file].append(case)
    if len(by_file) == 1:
        return sorted(cases, key=lambda case: case.event.begun)
    keys = {id(case): _key(case) for case in cases}
    return sorted(cases, key=lambda case: keys[id(case)])


def _key(case: Case) -> tuple[float, int, int]:
    return (case.time[0] if case.time else float("inf"), case.turn, case.event.begun)


def _by_number(name: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in _NUMBERS.split(name)]


def _year_of(reads: Sequence[Read]) -> int:
    """Return the year that clocks which tell one tell, so that the others may be held against them."""
    for read in reads:
        for clock in (*(event.row.clock for event in read.events[:200]), *(mark.clock for mark in read.marks[:50])):
            moment = moment_of(clock) if clock else None
            if moment and _tells_year(moment):
                return datetime.fromtimestamp(moment.at_s, timezone.utc).year
    return 2000


def _tells_year(moment: ClockTime) -> bool:
    return moment.yeared and moment.dated


_NEAR = 1.5
"""How much less solid than the most solid failure an earlier one may be."""
_PENALTY = {"root": 0.0, "victim": 1.5, "death": 2.5, "relayed": 3.0}
_QUOTED = 24
_LAST = 2.0
"""How much more solid it is that something may have failed when nothing is said behind it."""
_STORY = 1000
"""Lines of a log, those of failures not counted, behind which a root is another story than a victim before it."""
_STRUCK = re.compile(
    r"failed \(exitcode: -(?:4|7|8|9|11)\) local_rank|exits with return code = -(?:4|7|8|9|11)\b"
    r"|<Signals\.SIG(?:SEGV|BUS|ILL|FPE)"
)
"""A launcher's notice that a process was ended by a signal which no launcher sends first."""
_TOLD = re.compile(r"Received (?:1|2|Signals\.SIG(?:HUP|INT)) death signal")
"""A launcher's notice that somebody ended the job, or a terminal took it along."""
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class Ruling:
    """What the judge found: the root (None: nothing was fatal), all failures, and what was none."""

    root: Case | None
    cases: list[Case] = field(default_factory=list)
    noise: list[Case] = field(default_factory=list)
    skews_s: list[float] = field(default_factory=list)


def rule(reads: Sequence[Read], catalogue: SignatureSet, names: Sequence[str] = ()) -> Ruling:
    """Return the ruling over logs of one job; `names` are those of the logs."""
    return RootJudge(catalogue).rule(reads, names)


class RootJudge:
    """Rules over logs, again and again while they grow; an event that has not changed is assessed once."""

    def __init__(self, catalogue: SignatureSet) -> None:
        self._catalogue = catalogue
        self._known: dict[int, tuple[tuple[int, ...], Case]] = {}

    def rule(self, reads: Sequence[Read], names: Sequence[str] = ()) -> Ruling:
        """Return the ruling over logs of one job; `names` are those of the logs."""
        cases: list[Case] = []
        noise: list[Case] = []
        timeline = Timeline(reads, names)
        kept: dict[int, tuple[tuple[int, ...], Case]] = {}
        for read in reads:
            words = words_of(read.spoken)
            for event in read.events:
                case = _at_the_end(self._assess(event, words, kept), read)
                case.time, case.turn = timeline.time_of(case), timeline.turns[event.file]
                if case.cls != "noise":
                    case.why_not = survived(case, read)
                (noise if case.cls == "noise" or case.why_not else cases).append(case)
        self._known = kept
        cases, alive = _lived_with(cases, reads)
        noise += alive
        _count_quotes(cases)
        return Ruling(_root(cases, noise), in_order(cases), noise, timeline.skews_s)

    def _assess(self, event: Event, words: str, kept: dict[int, tuple[tuple[int, ...], Case]]) -> Case:
        """Return an event assessed, as it was when nothing came to it since."""
        size = (len(event.tail), len(event.raised), *(len(one.tail) for one in event.raised))
        known = self._known.get(id(event))
        case = known[1] if known and known[0] == size and known[1].event is event else None
        if case is None:
            case = assess(event, self._catalogue, words)
        case.quoted, case.why_not = 0.0, case.why_not if case.cls == "noise" else ""
        kept[id(event)] = (size, case)
        return case


def _at_the_end(case: Case, read: Read) -> Case:
    """Return an event as it counts where its log ends with it: what sounds like less was not lived with."""
    event = case.event
    if case.cls == "root" and event.weight == PERHAPS and not event.raised and not case.match:
        return replace(case, score=case.score + _LAST) if is_last_word(case, read, 0) else case
    loud = event.weight == LAST_WORD and not event.raised and not case.why_not and not is_never_fatal(case.text)
    died = bool(event.raised) and not is_logged(event) and not event.handled and case.why_not != "declared"
    if case.cls == "noise" and (loud or died) and is_last_word(case, read):
        return replace(case, cls="root", match=None, why_not="", score=float(case.score > 0))
    return case


def _lived_with(cases: list[Case], reads: Sequence[Read]) -> tuple[list[Case], list[Case]]:
    """Return the failures, and those behind which the same work goes on while nobody dies of them."""
    dead = [case.event for case in cases if case.cls in ("victim", "death", "relayed")]

    def is_mourned(case: Case) -> bool:
        return any(one.file != case.event.file or one.begun > case.event.begun for one in dead)

    alive = [case for case in cases if works_on(case, reads[case.event.file]) and not is_mourned(case)]
    for case in alive:
        case.why_not = "survived"
    return [case for case in cases if not case.why_not], alive


def _count_quotes(cases: list[Case]) -> None:
    """Raise the score of what other events quote."""
    for case in cases:
        said = _message(case.text)
        if len(said) < _QUOTED:
            continue
        if any(other is not case and other.number != case.number and said in _plain(other.text) for other in cases):
            case.quoted = 1.0


def _message(text: str) -> str:
    return _plain(text.partition(": ")[2] or text)[:80]


def _plain(text: str) -> str:
    return _DIGITS.sub("0", text)


def _root(cases: list[Case], noise: Sequence[Case] = ()) -> Case | None:
    if not cases or max(case.solidity for case in cases) < 0:
        return None
    solid = [case for case in cases if case.cls == "root" and case.solidity >= 1 and not _follows(case, cases)]
    solid, apart = _of_one_story(solid, cases)
    cases = [case for case in cases if case not in apart]
    if told := next((case for case in (*cases, *noise) if _TOLD.search(case.text)), None):
        solid = [case for case in solid if not precedes(told, case)]
    if solid:
        best = max(case.solidity for case in solid)
        first = first_of([case for case in solid if case.solidity >= best - _NEAR])
        return _first_of_its_cause(first, cases)
    if struck := [case for case in cases if case.cls == "death" and _STRUCK.search(case.text)]:
        return first_of(struck)
    rest = [(case.solidity - _PENALTY[case.cls] + _named_absent(case), case) for case in cases]
    best = max(score for score, _ in rest)
    return _first_of_its_cause(first_of([case for score, case in rest if score >= best - 1]), cases)


def _named_absent(case: Case) -> int:
    """Return how much more a victim tells that names the rank which it waited for."""
    return 3 if absent_in([case.text]) else 0


def _of_one_story(solid: list[Case], cases: list[Case]) -> tuple[list[Case], list[Case]]:
    """Return the roots that may be why a victim before them suffered, and those that came long after it."""
    victims = [case for case in cases if case.cls == "victim" and case.solidity >= 1]
    if not solid or not victims:
        return solid, []
    first = first_of(victims)
    spans = sorted((case.event.begun, case.event.last) for case in cases if case.event.file == first.event.file)

    def gap(case: Case) -> int:
        """How many lines that belong to no failure stand between the victim and a root."""
        between = case.event.begun - first.event.last
        return between - sum(last - begun + 1 for begun, last in spans if first.event.last < begun < case.event.begun)

    apart = [case for case in solid if case.event.file == first.event.file and gap(case) > _STORY]
    return [case for case in solid if case not in apart], apart


def _first_of_its_cause(chosen: Case, cases: list[Case]) -> Case:
    """Return the first failure that shows the cause of the chosen one, though it be less solid: a line alone.

    Not one of another host, unless clocks tell that it came before: in which order lines of two machines arrive says
    nothing.
    """
    if odd := _of_the_odd_rank(chosen, cases):
        return odd
    if not chosen.cause:
        return chosen
    alike = [case for case in cases if case.cause == chosen.cause and not case.wraps and case.cls != "relayed"]
    return first_of([chosen, *(case for case in alike if not _is_elsewhere(case, chosen) or is_told(case, chosen))])


def _is_elsewhere(case: Case, chosen: Case) -> bool:
    hosts = {case.event.row.host, chosen.event.row.host} - {""}
    return len(hosts) == 2 and case.solidity < chosen.solidity


def _of_the_odd_rank(chosen: Case, cases: list[Case]) -> Case | None:
    """Return what the rank says that called what no other did, where the chosen failure tells of such a rank."""
    named = absent_in(case.text for case in cases) if calls_of(chosen.text) else None
    if named is None:
        return None
    own = [case for case in cases if case.event.row.rank in named.ranks and calls_of(case.text)]
    return first_of(own) if own else None


def _follows(case: Case, cases: list[Case]) -> bool:
    """Whether an unknown failure came in a lane that had been a victim before."""
    if case.match:
        return False
    return any(
        other.cls in ("victim", "death", "relayed")
        and other.match is not None
        and other.event.lane == case.event.lane
        and other.event.begun < case.event.begun
        for other in cases
    )


Why = Literal["", "same-lane", "quoted", "collective", "kill-order", "time"]

_COLLECTIVE = re.compile(
    r"NCCL|nccl|[gG]loo|collective|TCPStore|rendezvous|c10d|[wW]atchdog|monitoredBarrier|DistStore|barrier"
)
_KILLED = re.compile(
    r"SIGTERM|SIGKILL|SIGQUIT|sigquit|closing signal|death signal|exit ?code|Exited|killed|Killed|signal"
)
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


def _same_lane(one: Case, other: Case) -> bool:
    return one.event.file == other.event.file and one.event.lane == other.event.lane


def _is_before(case: Case, root: Case) -> bool:
    return precedes(case, root)
