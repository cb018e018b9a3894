"""Candidates for the root cause: what each event is, what is known of it, and whether the job recovered from it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone

from rlbox.diagnose.clock import in_year, moment_of
from rlbox.diagnose.event_reader import Read
from rlbox.diagnose.events import Event, Statement, comes_again, is_logged
from rlbox.diagnose.lines import ENDED, FAILED, WARNED, LogRow, read_row
from rlbox.diagnose.patterns import LAST_WORD, PERHAPS, Class, Mark, class_of, goes_on, weight
from rlbox.diagnose.signatures import Match, SignatureSet

_INCIDENTAL = re.compile(
    r"^(?:KeyError|Empty|StopIteration|StopAsyncIteration|CancelledError|IndexError|AttributeError|GeneratorExit)$"
)
"""Exceptions that code raises on its way to another one, when that came while the first was handled."""


_RETRIED = re.compile(r"^Retrying in \d|\b[rR]etry(?:ing)?(?: attempt)? #?\d+ ?(?:/|of) ?\d+")
HEADING = re.compile(r"\bvalidation errors? for \w+")
"""An exception's line that only says how many problems stand below it."""
_SPEAKS = re.compile(r"NCCL WARN|Retry\(total=\d|death signal|has been marked dead|closing signal")


@dataclass(slots=True, eq=False)
class Case:
    """An event as the judge sees it. `number` and `text` are its telling line; `score` how solid a failure it is.

    `wraps`: its words say that it only passes on, or is the end of, something else, though the catalogue knows it.
    `time` is when it was told and how far that may be off, in seconds; `turn` the place of its log among all by their
    names, where no clock tells; `whole` its line as it stands in the log.
    """

    event: Event
    cls: Class
    match: Match | None
    number: int
    text: str
    kind: str = ""
    score: float = 0.0
    why_not: str = ""
    wraps: bool = False
    time: tuple[float, float] | None = None
    turn: int = 0
    whole: str = ""
    quoted: float = 0.0

    @property
    def solidity(self) -> float:
        """How solid a failure it is; one that others repeat is more so."""
        return self.score + self.quoted

    @property
    def cause(self) -> str:
        """The id of its cause; empty when the catalogue knows none."""
        return self.match.signature.cause if self.match else ""


def assess(event: Event, catalogue: SignatureSet, spoken: str = "") -> Case:
    """Return an event with its class and telling line."""
    if event.excused:
        return Case(event, "noise", None, event.number, event.text, why_not="declared")
    matches = catalogue.matches(event, spoken)
    benign = next((one for one in matches if one.signature.role == "benign"), None)
    known = next((one for one in matches if one.signature.role != "benign"), None)
    statements = list(event.statements())
    if benign and (known is None or benign.signature.rank > known.signature.rank):
        number, text, kind, _ = statements[benign.statement]
        return Case(event, "noise", benign, number, text, kind, why_not="signature")
    if known:
        known = _telling(event, known, matches)
        number, text, kind, tail = statements[known.statement]
        words = event.class_at(text, kind)
        case = Case(event, known.signature.role, known, number, text, kind)  # type: ignore[arg-type]
        case.wraps = words in ("relayed", "death")
        if (case.wraps or HEADING.search(text)) and known.tail >= 0:
            case.number, case.text = tail[known.tail]
        if event.level in (0, 1, WARNED) and not _speaks_anyway(event):
            case.cls, case.why_not = "noise", "level"
    else:
        case = _unknown(event, statements)
    if known and not event.raised and any(_RETRIED.search(line) for _, line in event.tail[:2]):
        case.wraps = True
    case.score = _solidity(case)
    case.whole = next((one.whole.strip() for one in event.raised if one.number == case.number), "")
    return case


def _telling(event: Event, known: Match, matches: list[Match]) -> Match:
    """Return which match in a chain of exceptions to name: not one on the way to another, nor one that only quotes."""
    quotes = bool(event.raised) and event.raised[known.statement].quotes and known.tail < 0
    if not quotes and not _is_incidental(event, known.statement):
        return known
    later = [one for one in matches if one.statement > known.statement and one.signature.role == known.signature.role]
    return later[0] if later else known


def _unknown(event: Event, statements: list[Statement]) -> Case:
    classes = [event.class_at(text, kind) for _, text, kind, _ in statements]
    for wanted in ("root", "victim", "death", "relayed", "noise"):
        places = [index for index, cls in enumerate(classes) if cls == wanted]
        if not places:
            continue
        at = places[0]
        if wanted == "relayed":
            if not event.handled and (quoted := _last_word(statements)):
                return Case(event, "root", None, *quoted)
            # rather than a head which only quotes
            at = next((place for place in reversed(places) if not (event.raised and event.raised[place].quotes)), at)
        if wanted == "root" and len(places) > 1 and _is_incidental(event, at):
            at = places[1]
        number, text, kind, _ = statements[at]
        cls: Class = "noise" if event.handled else wanted
        return Case(event, cls, None, number, text, kind, why_not="level" if cls == "noise" else "")
    return Case(event, "noise", None, event.number, event.text)


def _last_word(statements: list[Statement]) -> tuple[int, str] | None:
    """Return the first line of the messages that is a program's last word: the linker's in a failed build's."""
    for number, text in (line for *_, tail in statements for line in tail):
        if weight(read_row(number, text)) == LAST_WORD and class_of(text) == "root":
            return number, text
    return None


def _is_incidental(event: Event, at: int) -> bool:
    raised = event.raised[at : at + 2]
    return len(raised) == 2 and bool(_INCIDENTAL.match(raised[0].kind)) and raised[1].link == "context"


def _speaks_anyway(event: Event) -> bool:
    """Whether a line of a low level tells of a failure all the same: NCCL only warns of what ends it."""
    return bool(_SPEAKS.search(event.text))


def _solidity(case: Case) -> float:
    event, score = case.event, 0.0
    if case.match:
        score += 2
    if case.wraps and case.match and case.match.tail >= 0:
        return score
    if case.wraps:
        score -= 1
    if event.raised:
        score += 1 if is_logged(event) else 2
    elif event.weight == LAST_WORD:
        score += 1
    elif event.weight == PERHAPS and not case.match:
        score -= 2
    elif event.named and event.level < FAILED:
        score += 1
    if event.level == ENDED:
        score += 1
    return score


_FAR = 40
_BEHIND = 3
_END = 2
"""Lines that may stand behind the last word of a process."""
_OVER = re.compile(r"(?i)^(?!.*\bsuccessfully (?:installed|built))")
"""An end that is one of the work, not of what was put in before it."""
_AGAIN = 2
"""Lines that must come again with other numbers behind an error."""
_LINES = re.compile(r"The last (\d+) lines")


def survived(case: Case, read: Read) -> str:
    """Return why an error is none: `survived`, `shutdown`; empty when nothing acquits it."""
    after = _marks_after(case, read)
    counts = Counter(mark.sign for mark in after)
    steps = len({mark.text for mark in after if mark.sign == "step"})
    if _is_shutdown(case, read):
        return "shutdown"
    if says_it_goes_on(case):
        return "survived"
    if counts["ray"] and (case.event.level >= FAILED or _is_quote(case, read)):
        return "survived"
    hard = (case.event.raised and not is_logged(case.event)) or case.event.weight == LAST_WORD or case.event.kind
    if hard:
        return "survived" if steps >= 2 or counts["served"] >= 2 or counts["ready"] + counts["done"] >= 1 else ""
    if (
        steps >= 1
        or counts["served"] >= 1
        or counts["ready"]
        or counts["done"]
        or counts["saved"]
        or counts["bar"] >= 3
    ):
        return "survived"
    if case.event.weight == PERHAPS and not case.match and read.lines - case.event.last > _FAR:
        return "survived"
    return ""


def _marks_after(case: Case, read: Read) -> list[Mark]:
    found = []
    first = bisect_right(read.marks, case.event.ended, key=lambda mark: mark.number)
    for mark in read.marks[first:]:
        if mark.sign == "start" and case.event.again < mark.number:
            break
        found.append(mark)
    return _of_those_who_need_it(case, found, read)


def _of_those_who_need_it(case: Case, after: list[Mark], read: Read) -> list[Mark]:
    """Return the signs that tell of an error's fate: a rank's own where it gives any, as no other stands in for it."""
    row = case.event.row
    if row.rank >= 0 and any(_is_of(mark, row) for mark in read.marks):
        return [mark for mark in after if _is_of(mark, row)]
    if row.host and case.cls == "death":
        return [mark for mark in after if not mark.host or (mark.host == row.host and not _is_earlier(mark, row.clock))]
    return after


def _is_of(mark: Mark, row: LogRow) -> bool:
    """Whether a sign is of the process that wrote a line, which is `rank4` in a traceback and `rank 4` in a step."""
    return mark.lane == row.lane or (mark.rank == row.rank and mark.host == row.host)


def _is_earlier(mark: Mark, clock: str) -> bool:
    """Whether a sign was given before a time, though its line stands behind."""
    own, other = moment_of(mark.clock), moment_of(clock)
    if own is None or other is None or not own.dated or not other.dated:
        return False
    year = datetime.fromtimestamp(max(own.at_s, other.at_s), timezone.utc).year
    return in_year(own, year) < in_year(other, year)


def _is_quote(case: Case, read: Read) -> bool:
    """Whether an error stands in the end of a helper's log that its owner quotes."""
    begun = case.event.begun
    quotes = (mark for mark in read.marks if mark.sign == "quote" and mark.number < begun)
    return any(begun - mark.number <= int(_LINES.findall(mark.text)[0]) for mark in quotes)


def _is_shutdown(case: Case, read: Read) -> bool:
    """Whether the job had been told to end before, or had said that it is through."""
    before = [mark for mark in read.marks[-20:] if mark.number < case.event.begun]
    if case.cls != "root":
        return any(mark.sign == "stop" for mark in before)
    if case.match or case.event.raised or case.event.weight == LAST_WORD or case.event.level == ENDED or not before:
        return False
    return before[-1].sign == "done" and bool(_OVER.search(before[-1].text))


def says_it_goes_on(case: Case) -> bool:
    """Whether what stands behind an error, which came once, says that the work goes on."""
    event = case.event
    if event.count > 1 and not event.raised:
        return False
    tail = event.raised[-1].tail if event.raised else event.tail
    return event.went_on or any(goes_on(line) for _, line in tail[:_BEHIND])


def works_on(case: Case, read: Read) -> bool:
    """Whether lines that came with growing numbers before an error, as those of work do, came again behind it."""
    event = case.event
    if not event.raised or case.match or case.cls != "root":
        return False
    below = [one for one in read.below if one.number > event.ended]
    return comes_again(event.above, below, event.lane) >= _AGAIN


def is_last_word(case: Case, read: Read, behind: int = _END) -> bool:
    """Whether a log ends with an error, `behind` lines apart, and not as it should before it."""
    if read.lines - case.event.last > behind:
        return False
    return not read.marks or read.marks[-1].sign not in ("done", "saved", "stop")
