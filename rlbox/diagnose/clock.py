"""The clocks of logs on one scale: with year and zone or without, with a date of three digits, or with none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

NO_YEAR = 2000
"""The year of a clock that tells none; a leap year, so that every date is one."""

_CLOCK = re.compile(
    r"(?:(?P<y1>\d{4})[-/](?P<m1>\d\d)[-/](?P<d1>\d\d)[ T]"
    r"|(?P<m2>\d\d)/(?P<d2>\d\d)/(?P<y2>\d{4}|\d\d) "
    r"|(?P<m3>\d{1,2})[-/]?(?P<d3>\d\d) "  # glog writes no sign between month and day
    r"|(?:[A-Z][a-z]{2} )?(?P<m4>[A-Z][a-z]{2}) (?P<d4>[ \d]\d) )?"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?: (?P<half>[AP])M)?(?: (?P<y4>\d{4}))?(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d))?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class ClockTime:
    """A time that a line states: `seconds` counts from 1970 in UTC, which a clock without a zone is taken for.

    Without `has_date` it counts from midnight; without `has_year` the year is `NO_YEAR`.
    """

    seconds: float
    has_date: bool = True
    has_year: bool = True


def parse_clock(text: str) -> ClockTime | None:
    """Return the time that a clock shows as it is written in a line; None when it is not one."""
    found = _CLOCK.match(text.strip())
    if not found:
        return None
    part = {name[0]: value for name, value in found.groupdict().items() if value}  # year, month, day
    hour, minute, second = (int(found[name]) for name in ("hour", "minute", "second"))
    if found["half"]:
        hour = hour % 12 + (12 if found["half"] == "P" else 0)
    seconds = hour * 3600 + minute * 60 + min(second, 59) + float(f"0.{found['fraction'] or 0}")
    if "d" not in part:
        return ClockTime(seconds, has_date=False, has_year=False)
    year = int(part.get("y", NO_YEAR))
    try:
        month = _MONTHS.index(found["m4"]) + 1 if found["m4"] else int(found["m1"] or found["m2"] or found["m3"])
        year += 2000 if year < 100 else 0
        midnight = datetime(year, month, int(part["d"]), tzinfo=_parse_zone(found["zone"]))
    except (ValueError, OverflowError):
        return None
    return ClockTime(midnight.timestamp() + seconds, has_year="y" in part)


def _parse_zone(text: str | None) -> timezone:
    if not text or text in ("Z", "UTC"):
        return timezone.utc
    digits = text[1:].replace(":", "")
    return timezone(int(f"{text[0]}1") * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def to_unix_seconds_as_utc(clock: ClockTime, default_year: int) -> float:
    """Return seconds since 1970; `default_year` is assumed for a clock without one."""
    if clock.has_year or not clock.has_date:
        return clock.seconds
    base = datetime.fromtimestamp(clock.seconds, timezone.utc)
    try:
        return base.replace(year=default_year).timestamp()
    except ValueError:  # the 29th of February
        return base.replace(year=default_year, day=28).timestamp()


def is_earlier(clock: str, other: str) -> bool:
    """Whether a stated time is before another one; False where that is not known."""
    first, second = parse_clock(clock), parse_clock(other)
    if not first or not second or first.has_date != second.has_date:
        return False
    year = datetime.fromtimestamp(max(first.seconds, second.seconds), timezone.utc).year
    return to_unix_seconds_as_utc(first, year) < to_unix_seconds_as_utc(second, year)
