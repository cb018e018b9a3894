"""Bytes, spans, moments and tables as people read them; the one place that writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from rlbox.i18n import translate

MIB, GIB = 1 << 20, 1 << 30

_TENTHS, _MINUTE, _HOUR, _DAY = 10, 60, 3600, 86400
_KILO = 999.95  # what rounds to 1000.0 belongs to the next unit


def duration_text(seconds: float) -> str:
    """Return a measured span as people read it, coarser the longer it is.

    `0.4 s`, `8 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`. What somebody chose is told by `exact_duration_text`.
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


def exact_duration_text(seconds: float) -> str:
    """Return a span that somebody chose, nothing left out: `0.5 s`, `45 s`, `10 min`, `1 min 05 s`, `1 h 30 min`."""
    whole = int(seconds)
    if seconds != whole or whole < _MINUTE:
        return f"{seconds:.10g} s"
    found, rest = "", whole
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            found += f" {count:02d} {unit}" if found else f"{count} {unit}"
    return found


def duration_text_precise_below_minute(seconds: float) -> str:
    """Return a short span of which milliseconds matter: a step, a request; `0.123 s`, `29.1 s`, and minutes as ever."""
    return f"{seconds:.3g} s" if seconds < _MINUTE else duration_text(seconds)


def zoned_iso_to_unix(timestamp: str) -> float | None:
    """Return a time of a run's files (ISO 8601, UTC) as seconds since 1970; None for what is no time."""
    try:
        found = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo else None


def decimal_size_text(size_bytes: float, *, six_significant_digits: bool = False) -> str:
    """Return bytes as people read them, wherever they lie: `512 B`, `1.5 kB`, `5.3 GB`; a kB has 1000.

    Disks, files, transfers and memory alike, so that the same bytes always read the same; of a GPU's memory alone see
    `gpu_gib_or_mib_text`. `up_to_six_digits` keeps all digits of a round number, for an axis.
    """
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(value) < _KILO:
            break
        value, unit = value / 1000, larger
    return (
        f"{size_bytes:.0f} B"
        if unit == "B"
        else f"{value:g} {unit}"
        if six_significant_digits
        else f"{value:.1f} {unit}"
    )


def decimal_and_gib_size_text(gib: float) -> str:
    """Return what a spec asks for in GiB, as its bytes read elsewhere and as the spec has it: `2.1 GB (2 GiB)`."""
    return f"{decimal_size_text(gib * GIB)} ({gib:g} GiB)"


def gpu_gib_or_mib_text(size_bytes: float) -> str:
    """Return memory of a GPU as drivers and torch's errors count it: `31.8 GiB`, `64 MiB`; 1 GiB has 2^30 bytes.

    A card that is sold with 32 GB has 31.8 GiB, which in `decimal_size_text` would be 34.2 GB: nobody's word for it.
    """
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB / 10 or not size_bytes else f"{size_bytes / MIB:.0f} MiB"


def format_count_with_noun(count: int, singular: str, plural: str) -> str:
    """Return how many there are: `1 file`, `3 files`."""
    return f"1 {singular}" if count == 1 else f"{count} {plural}"


def align_translated(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows of texts, translated, as the lines of a table; every column but the last is as wide as its widest."""
    lines = [[translate(text) for text in row] for row in rows]
    widths = [max(map(count_columns, column)) for column in zip(*lines, strict=True)][:-1]
    return ["  ".join([*map(pad_translated, line, widths), line[-1]]).rstrip() for line in lines]


def pad_translated(text: str, columns: int) -> str:
    """Return a text, translated, filled up with spaces to columns of a terminal."""
    shown = translate(text)
    return shown + " " * (columns - count_columns(shown))


def count_columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: a Chinese character takes two."""
    from rich.cells import cell_len  # when it is wanted: most commands print no table

    return cell_len(text)


def utc_now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
