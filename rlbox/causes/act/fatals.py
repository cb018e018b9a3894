"""The first fatal lines of a stage's logs in the order in which they were written, and which of them is the cause.

A failure is recognised by the signatures of the fix catalogue, which a run carries beside its plan.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rlbox.causes.act.excerpt import FatalLine, last_line, read_fatal_line
from rlbox.causes.cause import Cause, CauseKind
from rlbox.causes.fatal_lines import Grade, is_earlier, is_quiet
from rlbox.causes.first_fatal import FatalSpot
from rlbox.files.act.beneath import read_bytes
from rlbox.foreign import parse_json
from rlbox.logs.act.file import Times
from rlbox.logs.lines import bare_text
from rlbox.spec.pattern import check_pattern, fits_but

_SAME_S = 1.5
"""Times of logs are noted to a second; within it, services come first: their clients suffer from what they say."""
_RELATED_S = 900.0
"""A line of a service that much before the stage's own is another story: the stage went on for long after it."""
_OWN_LOG: frozenset[CauseKind] = frozenset({"service", "ready"})


@dataclass(frozen=True, kw_only=True)
class LogFatal:
    """The first fatal line of one log; `log` is below the run directory, `at` Unix seconds, None when not noted."""

    log: str
    line: FatalLine
    at: float | None = None
    grade: Grade = "fatal"
    said_at: str = ""
    known: KnownCause | None = None


def read_fatals(run_dir: Path, spots: Mapping[str, FatalSpot]) -> tuple[LogFatal, ...]:
    """Return the fatal lines at `spots` (log to spot) with their contexts and times, the earliest first."""
    found = []
    for log, spot in spots.items():
        line = read_fatal_line(run_dir / log, spot)
        found.append(
            LogFatal(
                log=log,
                line=line,
                at=Times(run_dir / log).at(line.offset),
                grade=spot.grade,
                said_at=spot.said_at,
                known=find_known_cause(line, run_dir),
            )
        )
    return order_fatals(found)


def order_fatals(found: Sequence[LogFatal]) -> tuple[LogFatal, ...]:
    """Return `found` by time; at the same time by what the lines state themselves, else services first."""
    ordered: list[LogFatal] = []
    for fatal in sorted(found, key=lambda fatal: fatal.log.endswith("/stage.log")):
        at = next((index for index, other in enumerate(ordered) if _before(fatal, other)), len(ordered))
        ordered.insert(at, fatal)
    return tuple(ordered)


def _before(one: LogFatal, other: LogFatal) -> bool:
    if is_earlier(one.said_at, other.said_at):
        return True
    return one.at is not None and other.at is not None and one.at < other.at - _SAME_S


def culprit(cause: Cause, fatals: Sequence[LogFatal], run_dir: Path) -> LogFatal | None:
    """Return the fatal line that stands behind `cause`: the earliest that tells what failed.

    A dead service is explained by the logs of services only; the log of the cause is quoted by its last line when no
    log holds a fatal one.
    """
    last = next((fatal for fatal in fatals if fatal.log == cause.where), None)
    rows = [fatal for fatal in fatals if _is_related(fatal, last)]
    if cause.kind in _OWN_LOG:
        rows = [fatal for fatal in rows if not fatal.log.endswith("/stage.log")]
    for grade in ("fatal", "noticed", "wrapper"):
        for fatal in rows:
            if fatal.grade == grade:
                return fatal
    line = last_line(run_dir / cause.where) if cause.where else None
    return LogFatal(log=cause.where, line=line, grade="wrapper") if line else None


def _is_related(fatal: LogFatal, own: LogFatal | None) -> bool:
    if own is None or fatal.at is None or own.at is None:
        return True
    return own.at - fatal.at < _RELATED_S


def excerpt_text(fatal: LogFatal) -> str:
    """Return a fatal line with its context as text: a head, then the numbered lines, the line itself marked `>`."""
    line = fatal.line
    rows = [(number, " ", text) for number, text in enumerate(line.before, start=line.number - len(line.before))]
    rows.append((line.number, ">", line.text))
    rows += [(number, " ", text) for number, text in enumerate(line.after, start=line.number + 1)]
    body = "\n".join(f"{mark}{number:7d} {text}" for number, mark, text in rows)
    when = f"  {utc_text(fatal.at)}" if fatal.at is not None else ""
    return f"==> {fatal.log}:{line.number}{when}\n\n{body}\n"


def utc_text(moment: float) -> str:
    """Return Unix seconds as UTC in ISO 8601, to a second."""
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")


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
        for pattern, unless, known in rows:
            if fits_but(pattern, unless, text):
                return known
    return None


@functools.lru_cache(maxsize=4)
def read_signatures(run_dir: Path) -> tuple[tuple[str, str, KnownCause], ...]:
    """Return the signatures that a run carries, each as what a line holds, what it must not hold, and what that means.

    None when it carries none, or they cannot be read.
    """
    try:
        rows = parse_json(read_bytes(run_dir / SIGNATURES_FILE))
        return tuple(
            (
                check_pattern(row["pattern"]),
                row.get("unless", "") and check_pattern(row["unless"]),
                KnownCause(id=row["id"], title=row["title"], remedy=row["remedy"]),
            )
            for row in rows
            if not row.get("benign")
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def _texts(fatal: FatalLine) -> Iterable[str]:
    """Yield the line and those around it that say of themselves no more than a warning does: others are its reason."""
    near = (*fatal.after[:_NEAR], *reversed(fatal.before[-_NEAR:]))
    for text in (fatal.text, *(text for text in near if not is_quiet(bare_text(text)))):
        yield text
        if (bare := bare_text(text)) != text:
            yield bare
