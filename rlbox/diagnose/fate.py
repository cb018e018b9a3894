"""What became of the job after an error: did its lane go on, or was it ending anyway."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from datetime import datetime, timezone

from rlbox.diagnose.assess import Case
from rlbox.diagnose.read.clock import in_year, moment_of
from rlbox.diagnose.read.event import is_logged
from rlbox.diagnose.read.forms import LAST_WORD, PERHAPS, goes_on
from rlbox.diagnose.read.line import ENDED, FAILED, LogRow
from rlbox.diagnose.read.progress import Mark
from rlbox.diagnose.read.reader import Read
from rlbox.diagnose.read.recurring import comes_again

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
