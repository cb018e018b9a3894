"""One line of a log: what stands before it taken off, and whose it is, when, how grave."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from rlbox.diagnose.read.prefixes import GRAVE, WHEN, WHO
from rlbox.foreign import parse_json
from rlbox.logs.codes import clean_text

LEVELS = {
    "T": 0, "D": 0, "TRACE": 0, "DEBUG": 0,
    "I": 1, "INFO": 1, "NOTICE": 1, "VERSION": 1,
    "W": 2, "WARN": 2, "WARNING": 2,
    "E": 3, "ERR": 3, "ERROR": 3, "SEVERE": 3,
    "C": 4, "F": 4, "CRITICAL": 4, "FATAL": 4, "PANIC": 4, "ABORT": 4,
}  # fmt: skip
"""How grave a level is: 0 below information, 1 information, 2 a warning, 3 an error, 4 the end."""
UNSAID = -1
"""The level of a line that states none."""
WARNED, FAILED, ENDED = 2, 3, 4

_STACKED = 8
_LONGEST = 4000
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
_LANE = re.compile(
    r"^\s*(?:\((?=[^()]*\bpid=\d)[^()]*\)"  # Ray and vLLM: (WorkerDict pid=12, ip=10.0.0.2)
    r"|\[(?:rank|default) ?\d+\]"  # torch, torchrun --tee
    r"|\[\d+,\d+\]<std(?:err|out)>"  # mpirun --tag-output
    r"|\d{1,4}:\s"  # srun --label
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: (?:DP|PP|TP|EP)\d+)+)\])"  # SGLang
)
_ADDRESS = re.compile(r"\bip=([\w.:-]+)")


@dataclass(frozen=True, slots=True)
class LogRow:
    """A line, taken apart. `number` counts from 1; `body` is what is left without prefixes, its indent kept.

    `lane` names the process or worker that wrote it, as written; `rank` is -1 and the other texts are empty where the
    line does not say. `level` is one of `LEVELS`' numbers or `UNSAID`. `tagged`: something stood before the body.
    """

    number: int
    text: str
    body: str
    lane: str = ""
    host: str = ""
    rank: int = -1
    level: int = UNSAID
    clock: str = ""
    source: str = ""
    tagged: bool = False
    glued: bool = False
    clocks: int = 0

    @property
    def stamped(self) -> bool:
        """Whether one clock alone stands before it, as a container puts it before every line of a program."""
        return self.clocks == 1 and not self.source and self.level == UNSAID


def read_row(number: int, text: str) -> LogRow:
    """Return a line taken apart; never fails, whatever the line holds."""
    text = clean_text(text[:_LONGEST]).rstrip()
    plain = _CODES.sub("", text) if "[0" in text else text
    body = _behind_bar(plain)
    glued = len(body) < len(plain)
    if body.startswith("{") and (row := _from_json(number, text, body)):
        return row
    said = _Said()
    rest = said.strip(body)
    rest = _REPEAT.sub("", rest) if "[repeated " in rest else rest
    if said.level == UNSAID and rest.startswith("{") and (row := _from_json(number, text, rest)):
        return row
    if said.level == UNSAID and "Warning: " in rest and _WARNING.search(rest):
        said.level = WARNED
    behind = _behind_bar(rest)
    if len(behind) < len(rest):
        glued, rest = True, said.strip(behind)
    return LogRow(
        number, text, rest, said.lane, said.host, said.rank, said.level, said.clock, said.source,
        tagged=len(rest) < len(body), glued=glued, clocks=said.clocks,
    )  # fmt: skip


def lane_of(text: str) -> str:
    """Return what a line puts before itself to name the process or rank that wrote it; empty when it names none.

    Of the commonest forms alone, as whoever asks of every line of a log can afford it.
    """
    found = _LANE.match(text)
    return (found.group(1) or found.group(0)).strip() if found else ""


class _Said:
    """What the prefixes of one line say, gathered while they are taken off."""

    def __init__(self) -> None:
        self.lane = self.host = self.clock = self.source = ""
        self.rank = self.level = -1
        self.clocks = 0

    def strip(self, body: str) -> str:
        """Return what is left of a line."""
        for _ in range(_STACKED):
            found = next((hit for pattern in _patterns() if (hit := pattern.match(body))), None)
            if found is None or found.end() == 0:
                break
            self._take(found.groupdict())
            body = body[found.end() :]
        return body

    def _take(self, said: dict[str, str | None]) -> None:
        if lane := (said.get("lane") or "").strip():
            self.lane = f"{self.lane} {lane}".strip()
            if rank := _RANK.search(lane):
                self.rank = int(rank.group(1))
            if address := _ADDRESS.search(lane):
                self.host = address.group(1)
        self.host = self.host or said.get("host") or ""
        self.rank = int(said.get("rank") or self.rank)
        self.clocks += bool(said.get("clock"))
        self.clock = self.clock or (said.get("clock") or "").strip()
        self.source = said.get("source") or self.source
        if level := said.get("level"):
            self.level = LEVELS.get(level.upper(), self.level)


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in (*WHO, *WHEN, *GRAVE))


def _behind_bar(text: str) -> str:
    """Return what is glued to the end of progress bars; the line itself where there is none, or nothing behind."""
    if "%" not in text:
        return text
    at = 0
    while found := _BAR.match(text[at:]):
        at += found.end()
    rest = text[at:]
    return rest if rest.strip() else text


def _from_json(number: int, text: str, body: str) -> LogRow | None:
    """Return a line that is one JSON object with a message; None when it is none."""
    if not body.endswith("}"):
        return None
    try:
        data = parse_json(body)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    if isinstance(log := data.get("log"), str) and "level" not in data:  # docker's json-file
        row = read_row(number, log.rstrip("\n"))
        return row if row.clock else replace(row, clock=str(data.get("time", ""))[:40], tagged=True)
    message = next((data[key] for key in ("message", "msg", "event", "log") if isinstance(data.get(key), str)), None)
    level = next((data[key] for key in ("level", "levelname", "severity", "lvl") if isinstance(data.get(key), str)), "")
    if message is None or not level:
        return None
    extra = next((data[key] for key in ("exc_info", "error", "err", "exception") if isinstance(data.get(key), str)), "")
    clock = next((data[key] for key in ("time", "timestamp", "ts", "asctime") if isinstance(data.get(key), str)), "")
    said = f"{message}: {extra}" if extra and extra not in message else message
    lane = next((str(data[key]) for key in ("rank", "actor_name", "process", "pid") if key in data), "")
    return LogRow(
        number, text, said.split("\n")[0], lane, level=LEVELS.get(level.upper(), UNSAID), clock=clock, tagged=True
    )
