"""Which event broke first, what is left of the others, and whether the job lived on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlbox.diagnose.assess import Case, assess
from rlbox.diagnose.catalogue import Catalogue
from rlbox.diagnose.fate import survived
from rlbox.diagnose.read.reader import Read
from rlbox.diagnose.read.spoken import words_of

_NEAR = 1.5
"""How much less solid than the most solid failure an earlier one may be."""
_PENALTY = {"root": 0.0, "victim": 1.5, "death": 2.5, "relayed": 3.0}
_QUOTED = 24
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class Ruling:
    """What the judge found: the root (None: nothing was fatal), all failures, and what was none."""

    root: Case | None
    cases: list[Case] = field(default_factory=list)
    noise: list[Case] = field(default_factory=list)


def rule(reads: Sequence[Read], catalogue: Catalogue) -> Ruling:
    """Return the ruling over logs of one job."""
    cases, noise = [], []
    for read in reads:
        for event in read.events:
            case = assess(event, catalogue, words_of(read.spoken))
            if case.cls != "noise":
                case.why_not = survived(case, read)
            (noise if case.cls == "noise" or case.why_not else cases).append(case)
    _count_quotes(cases)
    return Ruling(_root(cases), cases, noise)


def _count_quotes(cases: list[Case]) -> None:
    """Raise the score of what other events quote."""
    for case in cases:
        said = _message(case.text)
        if len(said) < _QUOTED:
            continue
        if any(other is not case and other.number > case.number and said in _plain(other.text) for other in cases):
            case.score += 1


def _message(text: str) -> str:
    return _plain(text.partition(": ")[2] or text)[:80]


def _plain(text: str) -> str:
    return _DIGITS.sub("0", text)


def _root(cases: list[Case]) -> Case | None:
    solid = [case for case in cases if case.cls == "root" and case.score >= 1 and not _follows(case, cases)]
    if solid:
        best = max(case.score for case in solid)
        first = min((case for case in solid if case.score >= best - _NEAR), key=_begun)
        return _first_of_its_cause(first, cases)
    rest = [(case.score - _PENALTY[case.cls], case) for case in cases]
    if not rest:
        return None
    if max(case.score for case in cases) < 0:
        return None
    best = max(score for score, _ in rest)
    return _first_of_its_cause(min((case for score, case in rest if score >= best - 1), key=_begun), cases)


def _first_of_its_cause(chosen: Case, cases: list[Case]) -> Case:
    """Return the first failure that shows the cause of the chosen one, which may be less solid: a line before a traceback."""
    if not chosen.cause:
        return chosen
    alike = [case for case in cases if case.cause == chosen.cause and not case.wraps and case.cls != "relayed"]
    return min(alike, key=_begun, default=chosen)


def _begun(case: Case) -> int:
    return case.event.begun


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
