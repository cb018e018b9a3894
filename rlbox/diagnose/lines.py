"""One line of a log without its prefixes: who wrote it, when, and how severe it is; clocks on one scale."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from rlbox.diagnose.patterns import compile_toml_pattern_union, load_patterns
from rlbox.foreign import parse_untrusted_json
from rlbox.logs.lines import strip_ansi_escapes

LEVELS = {
    "T": 0, "D": 0, "TRACE": 0, "DEBUG": 0,
    "I": 1, "INFO": 1, "NOTICE": 1, "VERSION": 1,
    "W": 2, "WARN": 2, "WARNING": 2,
    "E": 3, "ERR": 3, "ERROR": 3, "SEVERE": 3,
    "C": 4, "F": 4, "CRITICAL": 4, "FATAL": 4, "PANIC": 4, "ABORT": 4,
}  # fmt: skip
"""How grave a level is: 0 below information, 1 information, 2 a warning, 3 an error, 4 the end."""
LevelDebug0ToFatal4 = int
NO_LEVEL = -1
"""The level of a line that states none."""
LEVEL_WARNING, LEVEL_ERROR, LEVEL_FATAL = 2, 3, 4

CERTAIN_FAILURE, STATED_FAILURE, POSSIBLE_FAILURE = 3, 2, 1
Certainty0To3 = int
NumberOrMinus1 = int

_STACKED = 8
_LONGEST_LINE = 4000
"""Characters of a line in which something is looked for; what stands behind them is payload."""
_BAR = re.compile(
    r"^[^\n]{0,300}?(?:\d{1,3}%(?: Completed ?)?\|[^|\n]{0,200}\||\d{1,3}% Completed \||\d{1,3}% \d+/\d+)"
    r"[^\[\n]{0,60}\[[^\]\n]{0,80}\]\s*(?:,\s*)?"
)
_CODES = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""Codes of a terminal that lost their first character where somebody copied them."""
_REPEAT = re.compile(r"\s*\[repeated \d{1,7}x across cluster\].*$")
_WARNING = re.compile(r"(?:^|[\s:])[A-Z]?\w*Warning: ")
_RANK = re.compile(r"(?i)\b(?:TP|rank)[ _=-]?(\d{1,5})\b")
_ADDRESS = re.compile(r"\bip=([\w.:-]+)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, split. `number` counts from 1; `body` is the text without prefixes, its indent kept.

    `writer` is the process or worker as its prefix names it; `rank` is -1 and the other texts are empty where the line
    does not say. `level` is a number of `LEVELS`, or `NO_LEVEL`. `logging_call_site` is file and line of the logging
    statement.
    """

    number: int
    text: str
    body: str
    writer: str = ""
    host: str = ""
    rank: NumberOrMinus1 = -1
    level: LevelDebug0ToFatal4 = NO_LEVEL
    clock: str = ""
    logging_call_site: str = ""
    has_prefix: bool = False
    follows_progress_bar: bool = False
    clock_count: int = 0

    @property
    def has_timestamp_but_no_level_or_call_site(self) -> bool:
        """Whether one clock, and neither level nor place of the logging statement, is in front of it."""
        return self.clock_count == 1 and not self.logging_call_site and self.level == NO_LEVEL


def parse_line(number: int, text: str) -> LogLine:
    text = strip_ansi_escapes(text[:_LONGEST_LINE]).rstrip()
    plain = _CODES.sub("", text) if "[0" in text else text
    body = _strip_progress_bar(plain)
    glued = len(body) < len(plain)
    if body.startswith("{") and (row := _parse_json_line(number, text, body)):
        return row
    said = _PrefixFields()
    rest = said.strip(body)
    rest = _REPEAT.sub("", rest) if "[repeated " in rest else rest
    if said.level == NO_LEVEL and rest.startswith("{") and (row := _parse_json_line(number, text, rest)):
        return row
    if said.level == NO_LEVEL and "Warning: " in rest and _WARNING.search(rest):
        said.level = LEVEL_WARNING
    behind = _strip_progress_bar(rest)
    if len(behind) < len(rest):
        glued, rest = True, said.strip(behind)
    return LogLine(
        number, text, rest, said.writer, said.host, said.rank, said.level, said.clock, said.source,
        has_prefix=len(rest) < len(body), follows_progress_bar=glued, clock_count=said.clock_count,
    )  # fmt: skip


def rate_failure_certainty(line: LogLine) -> Certainty0To3:
    """Return CERTAIN, STATED, POSSIBLE, or 0 for a line that states no failure."""
    body = line.body.strip()
    if not body:
        return 0
    if compile_toml_pattern_union("form", "programs").search(body):
        return CERTAIN_FAILURE
    if line.level >= LEVEL_ERROR or compile_toml_pattern_union("form", "named").search(body):
        return STATED_FAILURE
    return POSSIBLE_FAILURE if compile_toml_pattern_union("form", "perhaps").search(body) else 0


class _PrefixFields:
    def __init__(self) -> None:
        self.writer = self.host = self.clock = self.source = ""
        self.rank = self.level = -1
        self.clock_count = 0

    def strip(self, body: str) -> str:
        for _ in range(_STACKED):
            found = next((hit for pattern in _prefix_patterns() if (hit := pattern.match(body))), None)
            if found is None or found.end() == 0:
                break
            self._take(found.groupdict())
            body = body[found.end() :]
        return body

    def _take(self, said: dict[str, str | None]) -> None:
        if writer := (said.get("lane") or "").strip():
            self.writer = f"{self.writer} {writer}".strip()
            if rank := _RANK.search(writer):
                self.rank = int(rank.group(1))
            if address := _ADDRESS.search(writer):
                self.host = address.group(1)
        self.host = self.host or said.get("host") or ""
        self.rank = int(said.get("rank") or self.rank)
        self.clock_count += bool(said.get("clock"))
        self.clock = self.clock or (said.get("clock") or "").strip()
        self.source = said.get("source") or self.source
        if level := said.get("level"):
            self.level = LEVELS.get(level.upper(), self.level)


@functools.cache
def _prefix_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for key in ("writer", "clock", "level") for text in load_patterns("prefix", key))


def _strip_progress_bar(text: str) -> str:
    """Return what follows progress bars on their line; the line itself when nothing does."""
    if "%" not in text:
        return text
    at = 0
    while found := _BAR.match(text[at:]):
        at += found.end()
    rest = text[at:]
    return rest if rest.strip() else text


def _parse_json_line(number: int, text: str, body: str) -> LogLine | None:
    if not body.endswith("}"):
        return None
    try:
        data = parse_untrusted_json(body)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    if isinstance(log := data.get("log"), str) and "level" not in data:  # docker's json-file
        row = parse_line(number, log.rstrip("\n"))
        return row if row.clock else replace(row, clock=str(data.get("time", ""))[:40], has_prefix=True)

    def get_first_text(*keys: str) -> str:
        return next((data[key] for key in keys if isinstance(data.get(key), str)), "")

    message = get_first_text("message", "msg", "event", "log")
    level = get_first_text("level", "levelname", "severity", "lvl")
    if not message or not level:
        return None
    extra = get_first_text("exc_info", "error", "err", "exception")
    clock = get_first_text("time", "timestamp", "ts", "asctime")
    said = f"{message}: {extra}" if extra and extra not in message else message
    writer = next((str(data[key]) for key in ("rank", "actor_name", "process", "pid") if key in data), "")
    grade = LEVELS.get(level.upper(), NO_LEVEL)
    return LogLine(number, text, said.split("\n")[0], writer, level=grade, clock=clock, has_prefix=True)


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


def to_unix_or_midnight_seconds(clock: ClockTime, default_year: int) -> float:
    """Return seconds since 1970; `default_year` is assumed for a clock without one."""
    if clock.has_year or not clock.has_date:
        return clock.seconds
    base = datetime.fromtimestamp(clock.seconds, timezone.utc)
    try:
        return base.replace(year=default_year).timestamp()
    except ValueError:  # the 29th of February
        return base.replace(year=default_year, day=28).timestamp()


def is_known_earlier(clock: str, other: str) -> bool:
    """Whether a stated time is before another one; False where that is not known."""
    first, second = parse_clock(clock), parse_clock(other)
    if not first or not second or first.has_date != second.has_date:
        return False
    year = datetime.fromtimestamp(max(first.seconds, second.seconds), timezone.utc).year
    return to_unix_or_midnight_seconds(first, year) < to_unix_or_midnight_seconds(second, year)
