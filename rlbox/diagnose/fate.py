"""What became of the job after an error: did its lane go on, or was it ending anyway."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter

from rlbox.diagnose.assess import Case
from rlbox.diagnose.read.event import is_logged
from rlbox.diagnose.read.forms import LAST_WORD, PERHAPS
from rlbox.diagnose.read.line import FAILED
from rlbox.diagnose.read.progress import Mark
from rlbox.diagnose.read.reader import Read

_FAR = 40
_LINES = re.compile(r"The last (\d+) lines")


def survived(case: Case, read: Read) -> str:
    """Return why an error is none: `survived`, `shutdown`; empty when nothing acquits it."""
    after = _marks_after(case, read)
    counts = Counter(mark.sign for mark in after)
    steps = len({mark.text for mark in after if mark.sign == "step"})
    if _is_shutdown(case, read):
        return "shutdown"
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
    return found


def _is_quote(case: Case, read: Read) -> bool:
    """Whether an error stands in the end of a helper's log that its owner quotes."""
    begun = case.event.begun
    quotes = (mark for mark in read.marks if mark.sign == "quote" and mark.number < begun)
    return any(begun - mark.number <= int(_LINES.findall(mark.text)[0]) for mark in quotes)


def _is_shutdown(case: Case, read: Read) -> bool:
    """Whether the job had been told to end before."""
    return case.cls != "root" and any(
        mark.sign == "stop" and mark.number < case.event.begun for mark in read.marks[-20:]
    )
