"""The guide to a fault and to the environment: which fixes know a line of a log, and what each variable is set for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlbox.fixes.fix import Fix
from rlbox.fixes.view import Judged
from rlbox.target.target import Target

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of an image's environment, what it is set to, and why; `fix` is empty for one of the target's own."""

    name: str
    value: str
    fix: str
    reason: str


def fixes_that_know(fixes: Iterable[Fix], text: str) -> tuple[Fix, ...]:
    """Return the fixes whose signature is in one of the lines of `text`, those that can be mended before warnings."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = [fix for fix in fixes if any(row.fits(line) for row in fix.signature for line in lines)]
    return tuple(sorted(found, key=lambda fix: (fix.benign, fix.id)))


def fixes_that_speak(fixes: Iterable[Fix], text: str) -> tuple[Fix, ...]:
    """Return the fixes that have `text`, or else all its words, in id, titles or the lines that they know."""
    wanted = " ".join(text.casefold().split())
    told = [(fix, " ".join((fix.id, fix.title, fix.title_zh, *_lines(fix))).casefold()) for fix in fixes]
    if whole := [fix for fix, known in told if wanted and wanted in known]:
        return tuple(whole)
    words = set(_WORD.findall(wanted))
    return tuple(fix for fix, known in told if words and words <= set(_WORD.findall(known)))


def _lines(fix: Fix) -> Iterator[str]:
    return (row.example for row in fix.signature)


def variables(judged: Iterable[Judged], target: Target, chinese: bool = False) -> tuple[Variable, ...]:
    """Return every variable that fixes and the target set, by name; what the target itself sets holds."""
    return tuple(sorted(_variables(judged, target, chinese), key=lambda row: (row.name, row.fix)))


def _variables(judged: Iterable[Judged], target: Target, chinese: bool) -> Iterator[Variable]:
    for one in judged:
        title = one.fix.title_zh if chinese else one.fix.title
        for row in one.rows if one.applies else ():
            if row.kind in ("env", "path") and row.name not in target.env:
                yield Variable(name=row.name, value=row.value, fix=one.fix.id, reason=title)
    for name, value in target.env.items():
        reason = f"images/{target.name}/target.toml: env"
        yield Variable(name=name, value=value, fix="", reason=reason)
