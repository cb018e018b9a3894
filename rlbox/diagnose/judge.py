"""Which event broke first, what is left of the others, and whether the job lived on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rlbox.diagnose.assess import Case, assess
from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.collective import absent_in, calls_of
from rlbox.diagnose.fate import is_last_word, survived, works_on
from rlbox.diagnose.read.classes import is_never_fatal
from rlbox.diagnose.read.event import Event, is_logged
from rlbox.diagnose.read.forms import LAST_WORD, PERHAPS
from rlbox.diagnose.read.reader import Read
from rlbox.diagnose.read.spoken import words_of
from rlbox.diagnose.timeline import Timeline, first_of, in_order, is_told, precedes

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
