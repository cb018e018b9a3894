"""Bytes, spans, moments and tables as people read them; the one place that writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rlbox.printable import unmarked

MIB, GIB = 1 << 20, 1 << 30

_TENTHS, _MINUTE, _HOUR, _DAY = 10, 60, 3600, 86400
_KILO = 999.95  # what rounds to 1000.0 belongs to the next unit


def duration_text(seconds: float) -> str:
    """Return a measured span as people read it, coarser the longer it is.

    `0.4 s`, `8 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`. A limit is told in the seconds that its spec gives.
    """
    whole = max(0, int(seconds))
    if whole < _TENTHS:
        return f"{max(0.0, round(seconds, 1)):g} s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02d} h"


def moment(text: str) -> float | None:
    """Return a time of a run's files (ISO 8601, UTC) as seconds since 1970; None for what is no time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo else None


def size_text(size: float, *, exact: bool = False) -> str:
    """Return bytes as people read them, wherever they lie: `512 B`, `1.5 kB`, `5.3 GB`; a kB has 1000.

    Disks, files, transfers and memory alike, so that the same bytes always read the same. Next to a number that a spec
    gives in GiB stands that number as the spec has it. `exact` keeps all digits of a round number, for an axis.
    """
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(value) < _KILO:
            break
        value, unit = value / 1000, larger
    return f"{size:.0f} B" if unit == "B" else f"{value:g} {unit}" if exact else f"{value:.1f} {unit}"


def gib_text(size: float) -> str:
    """Return memory as drivers and their errors count it: `31.8 GiB`; 1 GiB has 2^30 bytes."""
    return f"{size / GIB:.1f} GiB"


def counted(count: int, one: str, more: str) -> str:
    """Return how many there are: `1 file`, `3 files`."""
    return f"1 {one}" if count == 1 else f"{count} {more}"


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows of texts as the lines of a table: every column but the last is as wide as its longest text."""
    lines = list(rows)
    widths = [max(len(unmarked(text)) for text in column) for column in zip(*lines, strict=True)][:-1]
    return ["  ".join([*map(padded, line, widths), line[-1]]).rstrip() for line in lines]


def padded(text: str, width: int) -> str:
    """Return a text with spaces behind it up to a width, in which marks of others' words do not count."""
    return text + " " * (width - len(unmarked(text)))
