"""What one event is: its class, what the catalogue knows of it, which of its lines says it, and how solid it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlbox.diagnose.catalogue import Match, SignatureSet
from rlbox.diagnose.read.classes import Class, class_of
from rlbox.diagnose.read.event import Event, Statement, is_logged
from rlbox.diagnose.read.forms import LAST_WORD, PERHAPS, weight
from rlbox.diagnose.read.line import ENDED, FAILED, WARNED, read_row

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
