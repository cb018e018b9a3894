"""How programs say that something failed, without a traceback: shells, linkers, daemons, argument parsers, kernels.

A form has a weight: 3, a program's last word; 2, it states an error; 1, it may.
"""

from __future__ import annotations

from rlbox.diagnose.read.line import FAILED, LogRow
from rlbox.diagnose.read.words import any_of

LAST_WORD, STATED, PERHAPS = 3, 2, 1


def weight(row: LogRow) -> int:
    """Return how surely a line says that something failed: 0 where it does not."""
    body = row.body.strip()
    if not body:
        return 0
    if any_of("form", "programs").search(body):
        return LAST_WORD
    if row.level >= FAILED or any_of("form", "named").search(body):
        return STATED
    return PERHAPS if any_of("form", "perhaps").search(body) else 0


def goes_on(body: str) -> bool:
    """Whether a line says that the work goes on after the error above it."""
    return bool(any_of("recurring", "went_on").search(body))
