"""The first fatal lines of a stage's logs in the order in which they were written, and which of them is the cause."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rlbox.diagnose.assess import assess
from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.cause import Cause, CauseKind
from rlbox.diagnose.excerpt import FatalLine, last_line, read_fatal_line
from rlbox.diagnose.live import FatalSpot, Grade, KnownCause
from rlbox.diagnose.load_catalogue import read_run_catalogue
from rlbox.diagnose.read.clock import moment_of
from rlbox.diagnose.read.event import from_line
from rlbox.diagnose.read.line import read_row
from rlbox.logs.file import Times

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
                known=spot.known,
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
    if _is_earlier(one.said_at, other.said_at):
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


@functools.lru_cache(maxsize=4)
def run_catalogue(run_dir: Path) -> SignatureSet:
    """Return the signatures that a run carries beside its plan; none when it carries none, or they cannot be read."""
    return read_run_catalogue(run_dir / SIGNATURES_FILE)


def find_known_cause(text: str, run_dir: Path) -> KnownCause | None:
    """Return what the catalogue of a run knows of a line; None when it knows nothing."""
    case = assess(from_line(read_row(1, text), 1), run_catalogue(run_dir))
    if case.match is None or case.match.signature.role == "benign":
        return None
    signature = case.match.signature
    return KnownCause(id=signature.fix, title=signature.title, remedy=signature.remedy)


def _is_earlier(one: str, other: str) -> bool:
    """Whether of two times as lines state them the first is before the other; False when they do not compare."""
    first, second = moment_of(one), moment_of(other)
    if first is None or second is None or (first.yeared, first.dated) != (second.yeared, second.dated):
        return False
    return first.at_s < second.at_s
