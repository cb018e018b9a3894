"""Bytes, spans, moments and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

MIB, GIB = 1 << 20, 1 << 30

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration_text(seconds: float) -> str:
    """Return a span as people read it, coarser the longer it is: `8 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`."""
    whole = max(0, int(seconds))
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


def size_text(size: int) -> str:
    """Return bytes as people read them: `512 B`, `1.5 kB`, `3.2 GB`."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def transfer_size(size: float) -> str:
    """Return bytes as people read them: 512 B, 10.5 MB, 5.32 GB."""
    for unit, scale, digits in (("GB", 1e9, 2), ("MB", 1e6, 1), ("kB", 1e3, 1)):
        if size >= scale:
            return f"{size / scale:.{digits}f} {unit}"
    return f"{size:.0f} B"


def memory_text(count: int) -> str:
    """Return a number of bytes for people: MiB below one GiB, GiB above."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows of texts as the lines of a table: every column but the last is as wide as its longest text."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    return ["  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines]
