"""A diagnosis for people: four lines, then the chain, then the place in the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from rlbox.diagnose.assess import Case
from rlbox.diagnose.links import Link
from rlbox.diagnose.verdict import UNKNOWN, Diagnosis, shown_text

WIDTH = 160
_CHAIN_SHOWN = 12
_ALSO_SHOWN = 4
_NOISE_SHOWN = 6
WHYS = {
    "": "it broke first",
    "same-lane": "same process, later",
    "quoted": "it repeats that line",
    "collective": "it waited for it",
    "kill-order": "it was ended after it",
    "time": "told later",
}
REASONS = {
    "signature": "known to be harmless",
    "survived": "the work went on after it",
    "shutdown": "the job was ending",
    "level": "no more than a warning",
    "declared": "the job declares it harmless",
}
"""Why an error is no failure."""
ENDINGS = {
    "failed": "",
    "survived": "there are errors, and the work went on after each of them",
    "clean": "the log ends as it should",
    "unseen": "the log has no ending: what comes behind its last line is not known",
}


Tell = Callable[[str], str]
_SIGN = re.compile("\ue000(\\d+)\ue001")


class Quoted:
    """The words of logs in a report: signs stand for them while the rest is told in the language of who reads."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def __call__(self, text: str) -> str:
        """Return the sign of a text."""
        self._texts.append(text)
        return f"\ue000{len(self._texts) - 1}\ue001"

    def filled(self, told: str) -> str:
        """Return a text with what its signs stand for."""
        return _SIGN.sub(lambda sign: self._texts[int(sign[1])], told)


def report(diagnosis: Diagnosis, excerpt: str = "", *, why: bool = False, tell: Tell = str) -> str:
    """Return the whole report.

    Parameters
    ----------
    excerpt
        The text around the root.
    why
        Add what was not taken for a failure.
    tell
        Tells a text in the language of who reads; it is not given what logs say.
    """
    quote = Quoted()
    if diagnosis.root is None:
        parts = [_healthy(diagnosis)]
    else:
        parts = ["\n".join(four_lines(diagnosis, quote)), _chain(diagnosis, quote)]
        if excerpt:
            parts.append(quote(excerpt))
    if why or diagnosis.root is None:
        parts.append(_noise(diagnosis, quote))
    return quote.filled(tell("\n\n".join(part for part in parts if part)))


def four_lines(diagnosis: Diagnosis, quote: Tell = str) -> Iterator[str]:
    """Yield what broke first, why, what followed, and what to do; `quote` is given what logs say."""
    root = diagnosis.root
    if root is None:
        return
    yield f"first: {_line(diagnosis, root, quote)}"
    yield f"cause: {_cause(diagnosis)}"
    yield f"after: {_followed(diagnosis, quote)}"
    yield f"next:  {_next(diagnosis)}"


def _cause(diagnosis: Diagnosis) -> str:
    sure = f"{diagnosis.confidence:.2f}"
    if diagnosis.cause != UNKNOWN:
        return f"{diagnosis.cause}: {diagnosis.title} (sure to {sure})"
    if diagnosis.fix:
        return f"{diagnosis.fix}: {diagnosis.title} (sure to {sure})"
    if diagnosis.placed:
        placed = diagnosis.placed
        return f"unknown: raised in {placed['where']}, {placed['package']} {placed['versions']}; no signature knows it"
    return "unknown: no signature knows this line"


def _next(diagnosis: Diagnosis) -> str:
    if diagnosis.fetch:
        fetch = f"these are consequences; look at {diagnosis.fetch}"
        return f"{fetch}. {diagnosis.remedy}" if diagnosis.remedy and diagnosis.cause != UNKNOWN else fetch
    return diagnosis.remedy or "none is known; `rlbox diagnose LOG --why` tells what else went wrong there"


def _followed(diagnosis: Diagnosis, quote: Tell) -> str:
    rest = diagnosis.chain[1:]
    if not rest:
        return "nothing more that failed"
    lanes = dict.fromkeys(link.case.event.lane or diagnosis.files[link.case.event.file].name for link in rest)
    shown = quote(", ".join(list(lanes)[:3]) + (", …" if len(lanes) > 3 else ""))
    last = quote(shown_text(rest[-1].case)[:80])
    if len(rest) == 1:
        return f"one consequence, in {shown}: {last}"
    return f"{len(rest)} consequences, in {shown}; the last: {last}"


def _line(diagnosis: Diagnosis, case: Case, quote: Tell) -> str:
    """Return where a failure stands, and its line."""
    row = case.event.row
    place = f"{diagnosis.files[case.event.file].name}:{case.number}"
    where = ", ".join(part for part in (place, row.lane, row.clock) if part)
    return quote(f"{where}: {shown_text(case)[:WIDTH]}")


def _chain(diagnosis: Diagnosis, quote: Tell) -> str:
    if len(diagnosis.chain) < 2 and not diagnosis.also:
        return ""
    rows = [_step(diagnosis, place, link, quote) for place, link in enumerate(diagnosis.chain[:_CHAIN_SHOWN])]
    if (left := len(diagnosis.chain) - _CHAIN_SHOWN) > 0:
        rows.append(f"  … and {left} more")
    for case in diagnosis.also[:_ALSO_SHOWN]:
        rows.append(f"  also: {_line(diagnosis, case, quote)} [{case.cause or UNKNOWN}]")
    return "\n".join(rows)


def _step(diagnosis: Diagnosis, place: int, link: Link, quote: Tell) -> str:
    case = link.case
    times = f" ({case.event.count} times)" if case.event.count > 1 else ""
    of = f" {link.of + 1}" if link.of > 0 else ""
    return f"  {place + 1}. {_line(diagnosis, case, quote)}{times} [{link.kind}, {WHYS[link.why]}{of}]"


def _healthy(diagnosis: Diagnosis) -> str:
    ending = ENDINGS[diagnosis.ending]
    lines = sum(one.lines for one in diagnosis.files)
    return f"nothing fatal in {lines} lines; {ending}"


def _noise(diagnosis: Diagnosis, quote: Tell) -> str:
    rows: list[str] = []
    seen: Sequence[dict[str, object]] = diagnosis.as_json()["benign"]
    for row in seen[:_NOISE_SHOWN]:
        line = quote(f"{row['file']}:{row['line']}: {str(row['text'])[:WIDTH]}")
        known = f"{row['cause']}, " if row["cause"] else ""
        rows.append(f"  no failure: {line} [{known}{row['count']} times, {REASONS[str(row['why'])]}]")
    if (left := len(seen) - _NOISE_SHOWN) > 0:
        rows.append(f"  … and {left} more that are none")
    return "\n".join(rows)
