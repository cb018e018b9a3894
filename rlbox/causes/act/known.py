"""Recognise a failure by the signatures of the fix catalogue, which a run carries beside its plan."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlbox.causes.act.excerpt import FatalLine
from rlbox.logs.lines import bare_text

SIGNATURES_FILE = "spec/signatures.json"
_NEAR = 30
"""Lines around the fatal one that are looked at when it says nothing itself: a traceback ends far from its reason."""


@dataclass(frozen=True, kw_only=True)
class KnownCause:
    """A cause that the catalogue knows: the id of its fix, its title, and the smallest next step."""

    id: str
    title: str
    remedy: str


def find_known_cause(fatal: FatalLine, run_dir: Path) -> KnownCause | None:
    """Return what the catalogue knows of a fatal line, or of the lines around it; None when it knows nothing."""
    rows = read_signatures(run_dir)
    for text in _texts(fatal) if rows else ():
        for pattern, known in rows:
            if pattern.search(text):
                return known
    return None


@functools.lru_cache(maxsize=4)
def read_signatures(run_dir: Path) -> tuple[tuple[re.Pattern[str], KnownCause], ...]:
    """Return the signatures that a run carries; none when it carries none, or they cannot be read."""
    try:
        rows = json.loads((run_dir / SIGNATURES_FILE).read_bytes())
        return tuple(
            (re.compile(row["pattern"]), KnownCause(id=row["id"], title=row["title"], remedy=row["remedy"]))
            for row in rows
            if not row.get("benign")
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, re.error):
        return ()


def _texts(fatal: FatalLine) -> Iterable[str]:
    for text in (fatal.text, *fatal.after[:_NEAR], *reversed(fatal.before[-_NEAR:])):
        yield text
        if (bare := bare_text(text)) != text:
            yield bare
