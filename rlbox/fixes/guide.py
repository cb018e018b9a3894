"""The guide to a fault and to the environment: which fixes know a line of a log, and what each variable is set for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlbox.diagnose.events import from_line
from rlbox.diagnose.lines import read_row
from rlbox.diagnose.signatures import SignatureSet, signatures_of
from rlbox.fixes.fix import Fix
from rlbox.fixes.manifest import SIGNED
from rlbox.fixes.view import Judged
from rlbox.i18n import _
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
    """Return the fixes whose signature is in one of the lines of `text`, what tells more first, warnings last."""
    by_id = {fix.id: fix for fix in fixes}
    known = SignatureSet(signatures_of(fix.model_dump(include=SIGNED) for fix in by_id.values()))
    lines = (from_line(read_row(number, line), 1) for number, line in enumerate(text.splitlines(), start=1))
    found = dict.fromkeys(match.signature.fix for line in lines for match in known.matches(line))
    return tuple(sorted((by_id[name] for name in found), key=lambda fix: fix.benign))


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


def variables(judged: Iterable[Judged], target: Target) -> tuple[Variable, ...]:
    """Return every variable that fixes and the target set, by name; what the target itself sets holds."""
    return tuple(sorted(_variables(judged, target), key=lambda row: (row.name, row.fix)))


def _variables(judged: Iterable[Judged], target: Target) -> Iterator[Variable]:
    for one in judged:
        for row in one.rows if one.applies else ():
            if row.kind in ("env", "path") and row.name not in target.env:
                yield Variable(name=row.name, value=row.value, fix=one.fix.id, reason=_(one.fix.title))
    for name, value in target.env.items():
        reason = f"images/{target.name}/target.toml: env"
        yield Variable(name=name, value=value, fix="", reason=reason)
