"""The clocks of logs on one scale: with year and zone or without, with a date of three digits, or with none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

NO_YEAR = 2000
"""The year of a clock that tells none; a leap year, so that every date is one."""

_FULL = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d))?"
)
_MONTH_DAY = re.compile(r"(\d\d)[-/](\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_AMERICAN = re.compile(r"(\d\d)/(\d\d)/(\d{4}|\d\d) (\d\d):(\d\d):(\d\d)(?: ([AP])M)?")
_SYSLOG = re.compile(r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(?: (\d{4}))?")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class ClockTime:
    """A time that a line states: `seconds` counts from 1970 in UTC where it `has_zone`, else as if its zone were UTC.

    Without `has_date` it counts from midnight; without `has_year` the year is `NO_YEAR`.
    """

    seconds: float
    has_zone: bool = False
    has_date: bool = True
    has_year: bool = True


def parse_clock(text: str) -> ClockTime | None:
    """Return the time that a clock shows as it is written in a line; None when it is not one."""
    try:
        return _moment(text.strip())
    except (ValueError, OverflowError):
        return None


def _moment(text: str) -> ClockTime | None:
    if found := _FULL.match(text):
        year, month, day, hour, minute, second = map(int, found.groups()[:6])
        zone = _zone(found.group(8))
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone or timezone.utc)
        return ClockTime(moment.timestamp() + _part(found.group(7)), has_zone=zone is not None)
    if found := _MONTH_DAY.match(text):
        return _without_year(found)
    if found := _GLOG.match(text):
        return _without_year(found)
    if found := _AMERICAN.match(text):
        month, day, year, hour, minute, second = map(int, found.groups()[:6])
        hour = hour % 12 + (12 if found.group(7) == "P" else 0) if found.group(7) else hour
        year += 2000 if year < 100 else 0
        return ClockTime(datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp())
    if found := _SYSLOG.match(text):
        month = _MONTHS.index(found.group(1)) + 1
        day, hour, minute, second = (int(part) for part in found.groups()[1:5])
        year = int(found.group(6) or NO_YEAR)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
        return ClockTime(moment.timestamp(), has_year=bool(found.group(6)))
    if found := _TIME.match(text):
        hour, minute, second = map(int, found.groups()[:3])
        return ClockTime(hour * 3600.0 + minute * 60 + second + _part(found.group(4)), has_date=False, has_year=False)
    return None


def _without_year(found: re.Match[str]) -> ClockTime:
    month, day, hour, minute, second = (int(part) for part in found.groups()[:5])
    moment = datetime(NO_YEAR, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc)
    return ClockTime(moment.timestamp() + _part(found.group(6)), has_year=False)


def _part(text: str | None) -> float:
    return float(f"0.{text}") if text else 0.0


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    if text in ("Z", "UTC"):
        return timezone.utc
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def to_unix_seconds_as_utc(clock: ClockTime, default_year: int) -> float:
    """Return seconds since 1970; `default_year` is assumed for a clock without one."""
    if clock.has_year or not clock.has_date:
        return clock.seconds
    base = datetime.fromtimestamp(clock.seconds, timezone.utc)
    try:
        return base.replace(year=default_year).timestamp()
    except ValueError:  # the 29th of February
        return base.replace(year=default_year, day=28).timestamp()
