"""Decide from the log and the activity of a stage's processes whether it works, is slow, or hangs.

Two rules, in addition to that of the ranks (`ranks.py`). *Silence*: for as long as the phase allows there was no sign
of life: no line that says something, no phase begun, no step, none of the activities that the phase names. *Steps*: the
log counted steps at a known interval, no step came for many times that interval, and the processes do nothing; lines
that only repeat themselves do not count.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import re2
from pydantic import Field

from rlbox.config.pattern import create_re2_options
from rlbox.config.schema import SpecModel, validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.hang.ranks import Deadlock
from rlbox.job.job import FLOORS, Phase
from rlbox.logs.lines import strip_ray_prefix_and_repeat
from rlbox.logs.patterns import compile_pattern_set
from rlbox.system.counters import ActivityRates

PHASES = Path(__file__).with_name("phases.toml")


class _ShippedPhases(SpecModel):
    phases: tuple[Phase, ...]
    background: tuple[str, ...] = Field(description="processes whose activity proves nothing, by the start of a name")


@functools.cache
def load_shipped_phases() -> _ShippedPhases:
    return validate_spec(_ShippedPhases, load_toml(PHASES), str(PHASES))


@dataclass(frozen=True, kw_only=True)
class PhaseStartOrEnd:
    """A line that began a phase, or ended one (`phase` None)."""

    phase: Phase | None
    text: str


def merge_phases(
    job_phases: Sequence[Phase], shipped_phases: Sequence[Phase], silence_s: float, *, override_shipped_silence: bool
) -> tuple[Phase, ...]:
    """Return the phases that a stage may be in, in the order in which they are asked.

    One of the job's own replaces the shipped one of its name. `silence_s`, where the job states it, is that
    of every shipped phase too.
    """
    names = {phase.name for phase in job_phases}
    kept = [phase for phase in shipped_phases if phase.name not in names]
    if override_shipped_silence:
        kept = [phase.model_copy(update={"silence_s": silence_s}) for phase in kept]
    return (*job_phases, *kept)


def _make_fallback_phase(silence_s: float, name: str = "") -> Phase:
    """Return what a stage is in before any marker: only its own limit counts, and reading or computing is life."""
    return Phase.model_construct(
        name=name, begins=(), silence_s=silence_s, progress={sign: FLOORS[sign] for sign in ("read", "write", "gpu")}
    )


class PhaseMatcher:
    def __init__(self, phases: Sequence[Phase]) -> None:
        self._ended_by = [(text, phase) for phase in phases for text in phase.ends]
        self._begun_by = [(text, phase) for phase in phases for text in phase.begins]
        texts = tuple(text for text, _ in (*self._begun_by, *self._ended_by))
        self._set = compile_pattern_set(texts) if texts else None

    def parse_phase_changes(self, lines: bytes) -> list[PhaseStartOrEnd]:
        changes: list[PhaseStartOrEnd] = []
        at = 0
        while self._set and at < len(lines) and (hit := self._set.find_next_candidate(lines, at)) is not None:
            start, end = lines.rfind(b"\n", 0, hit) + 1, lines.find(b"\n", hit)
            end = len(lines) if end < 0 else end
            if change := self.parse_phase_change(lines[start:end].decode("utf-8", "replace")):
                changes.append(change)
            at = end + 1
        return changes

    def parse_phase_change(self, text: str) -> PhaseStartOrEnd | None:
        """Return what one line begins or ends; one that does both ends the phase."""
        if self._set is None:
            return None
        fitting = self._set.find_matching_indexes(strip_ray_prefix_and_repeat(text))
        if not fitting:
            return None
        if fitting[-1] >= len(self._begun_by):
            return PhaseStartOrEnd(phase=None, text=text)
        return PhaseStartOrEnd(phase=self._begun_by[fitting[0]][1], text=text)


_COUNTERS = (
    r"(?i)(?:^|[^a-z0-9_]|global_)(?:steps?|iteration|iter|rollout|epoch|episode|update|batch)"
    r"[\"']?\s?[\[:=#/ ]\s{0,10}(\d{1,12})\b"
    r"|(\d{1,12})/\d{1,12} \["
)
_SIGNS = re.compile(r"[^A-Za-z]+")
_KEY_CHARS = 48
_MOST_SERIES = 1024
_MOST_INTERVALS = 64
_MEMORY = 0.995
"""How much of the longest interval is still remembered one step later: half of it after 140 steps."""
_ENOUGH = 8
"""Intervals after which the usual time of a step is known."""


class StepTimer:
    """Learns the interval between steps; a step is any counter of the log (`step 12`, `12/100 [`) that rises.

    Counters of several ranks that are written alike are one: the foremost counts. One that falls back to where it
    began starts again (a new epoch). Of `longest_interval_s` less is remembered the more steps came since.
    """

    def __init__(self) -> None:
        self._pattern = re2.compile(_COUNTERS.encode(), create_re2_options())
        self._series: dict[str, tuple[int, int]] = {}
        self._intervals: deque[float] = deque(maxlen=_MOST_INTERVALS)
        self.longest_interval_s = 0.0
        self._last_s: float | None = None
        self._warm = False

    def feed(self, block: bytes, now_s: float) -> bool:
        """Take lines (UTF-8) that came at `now_s`; return whether a step was among them."""
        stepped = False
        for found in self._pattern.finditer(block):
            number = 1 if found.group(1) is not None else 2
            start = max(block.rfind(b"\n", 0, found.start(number)) + 1, 0)
            stepped |= self._count(block[start : found.start(number)], int(found.group(number)))
        if stepped:
            self._time(now_s)
        return stepped

    def skip_next_interval(self) -> None:
        self._last_s = None

    @property
    def is_interval_known(self) -> bool:
        return len(self._intervals) >= _ENOUGH and self._last_s is not None

    @property
    def median_interval_s_or_0(self) -> float:
        return median(self._intervals) if self._intervals else 0.0

    def _count(self, before: bytes, number: int) -> bool:
        key = _SIGNS.sub("#", strip_ray_prefix_and_repeat(before.decode("utf-8", "replace"))[-_KEY_CHARS:])
        first, highest = self._series.get(key, (number, number - 1))
        if number <= highest and not (number <= first < highest):
            return False
        if len(self._series) < _MOST_SERIES or key in self._series:
            self._series[key] = (min(first, number), number)
        return True

    def _time(self, now_s: float) -> None:
        if self._last_s is not None and now_s > self._last_s:
            if self._warm:  # the first interval holds the warm-up
                interval_s = now_s - self._last_s
                self._intervals.append(interval_s)
                self.longest_interval_s = max(interval_s, self.longest_interval_s * _MEMORY)
            self._warm = True
        self._last_s = now_s


TRAINING = "training"
_STEPS_FLOOR_S = 25.0
_LONGEST_TIMES = 3.0
_IDLE_CPU, _IDLE_SHARE = 0.05, 0.25
_MINUTE_S = 60.0
_WINDOW_S = 30.0
LOOKED_AT_BYTES, _COUNTED, _HEARD = 1 << 17, 1 << 14, 1 << 11
"""Bytes of the end of a block that are searched for phases, for steps and for news.

Who writes more between two looks (2.5 MB a second) is alive, and in the phase that the end of it shows: a log of
gigabytes is caught up with faster than it can be searched.
"""
_MOST_LINES = 8
_MEMORY_BUSY = 10
_NETWORK_CPU = 0.01
_RECURS = 3

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CLOCK = re.compile(r"\d{1,4}[-/]\d{1,2}(?:[-/]\d{1,4})?|\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?|pid=\d+|0x[0-9a-f]+")
_BAR_END = re.compile(r"\[[^\]]*\]?\s*$")  # elapsed<left, rate: what changes while a bar stands still
_SPINNER = re.compile(r"[^\x20-\x7e]+|^[|/\\-] ")
_CHARS = 160
_MOST = 4096


@dataclass(frozen=True, kw_only=True)
class HangOrTimeout:
    """A stage that hangs, by `rule`. Times in seconds.

    `ready` and `total` are a service and a stage that took longer than they may, hung or not. `deadlock` is how the
    ranks wait for each other.
    """

    rule: Literal["silence", "steps", "ranks", "ready", "total"]
    phase: Phase
    silent_s: float
    limit_s: float
    step_s: float = 0.0
    deadlock: Deadlock | None = None


class HangDetector:
    """Takes what a stage says and does, in the order in which it happens; `now_s` is any clock that only goes on.

    `last_output_s` is when its log last went on, `last_progress_s` when it last did more than repeat itself or idle.
    """

    def __init__(self, phases: Sequence[Phase], silence_s: float, max_silent_steps: float, now_s: float) -> None:
        self._finder = PhaseMatcher(phases)
        self._unnamed = self.phase = _make_fallback_phase(silence_s)
        self._training = _make_fallback_phase(silence_s, TRAINING)
        self._steps = max_silent_steps
        self._timer = StepTimer()
        self._history = _LineHistory()
        self._begun: dict[str, int] = {}
        self._usual_cpu = 0.0
        self.recent_rates: deque[tuple[float, ActivityRates]] = deque()
        """Those of the last minute, each with its time."""
        self._alive_s = self.last_progress_s = self._idle_s = self.last_output_s = now_s

    @property
    def usual_step_s_or_0(self) -> float:
        return self._timer.median_interval_s_or_0 if self._timer.is_interval_known else 0.0

    def get_inactivity_s(self, now_s: float) -> float:
        return now_s - self._alive_s

    def feed_lines(self, block: bytes, now_s: float) -> list[PhaseStartOrEnd]:
        block = select_last_whole_lines(block, LOOKED_AT_BYTES)
        lines = self._finder.parse_phase_changes(block)
        for line in lines:
            self._enter(line)
        stepped = self._timer.feed(select_last_whole_lines(block, _COUNTED), now_s)
        if stepped and not lines and self._timer.is_interval_known and self.phase.name != TRAINING:
            self.phase = self._training
            lines = [PhaseStartOrEnd(phase=self._training, text="")]
        self._note_activity(block, now_s, has_advanced=stepped or bool(lines))
        return lines

    def feed_partial_line_and_get_phase_start(self, unfinished: str, now_s: float) -> PhaseStartOrEnd | None:
        """Take a line that has not ended yet (a progress bar) when it grew; return the phase that it began."""
        line = self._finder.parse_phase_change(unfinished)
        if line and (line.phase is None or line.phase is self.phase):
            line = None
        if line:
            self._enter(line)
        stepped = self._timer.feed(unfinished.encode(), now_s)
        if self._history.has_bar_changed(unfinished) or line or stepped:
            self._alive_s = self.last_progress_s = self.last_output_s = now_s
        return line

    def feed_rates(self, rates: ActivityRates, now_s: float, *, log_advanced: bool) -> None:
        """Take what the processes did; where the log went on meanwhile this is what they do when all is well."""
        self.recent_rates.append((now_s, rates))
        while self.recent_rates and now_s - self.recent_rates[0][0] > _MINUTE_S:
            self.recent_rates.popleft()
        if log_advanced:
            self._usual_cpu = max(self._usual_cpu * 0.9, rates.cpu)
        for sign, floor in self.phase.progress.items():
            if self._reaches(sign, floor, now_s):
                self._alive_s = now_s
        if log_advanced:
            return
        is_active = any(self._reaches(sign, floor, now_s) for sign, floor in FLOORS.items() if sign != "cpu")
        if is_active or rates.cpu >= max(_IDLE_CPU, _IDLE_SHARE * self._usual_cpu):
            self.last_progress_s = now_s
        else:
            self._idle_s = now_s

    @property
    def probe_interval_s(self) -> float:
        return min(max(self.phase.silence_s / 8, 0.5), 5.0)

    def find_hang(self, now_s: float) -> HangOrTimeout | None:
        longest_s = _LONGEST_TIMES * self._timer.longest_interval_s
        limit_s = max(_STEPS_FLOOR_S, self._steps * self.usual_step_s_or_0, longest_s)
        silent_s = now_s - self.last_progress_s
        seen_idle = self._idle_s > self.last_progress_s  # measured since, not only supposed
        if self._steps and self._timer.is_interval_known and seen_idle and silent_s > limit_s:
            return HangOrTimeout(
                rule="steps", phase=self.phase, silent_s=silent_s, limit_s=limit_s, step_s=self.usual_step_s_or_0
            )
        limit_s, silent_s = self.phase.silence_s, self.get_inactivity_s(now_s)
        if silent_s > limit_s:
            return HangOrTimeout(rule="silence", phase=self.phase, silent_s=silent_s, limit_s=limit_s)
        return None

    def _enter(self, line: PhaseStartOrEnd) -> None:
        phase = line.phase or self._unnamed
        if phase is self.phase:
            return
        self._begun[phase.name] = self._begun.get(phase.name, 0) + 1
        if self._begun[phase.name] < _RECURS:  # later it is a part of each step
            self._timer.skip_next_interval()
        self.phase = phase

    def _note_activity(self, block: bytes, now_s: float, *, has_advanced: bool) -> None:
        texts = select_last_whole_lines(block, _HEARD).decode("utf-8", "replace").split("\n")
        news = self._history.learn(texts[-_MOST_LINES:])
        if has_advanced or news == "new kind" or not self._timer.is_interval_known:
            self._alive_s = self.last_progress_s = self.last_output_s = now_s
        elif news == "new numbers" or len(texts) > _MOST_LINES:
            self._alive_s = now_s

    def _reaches(self, sign: str, floor: float, now_s: float) -> bool:
        """Whether an activity reaches its floor now, and on the average of the last half minute: a burst is no life."""
        window = [rates for at, rates in self.recent_rates if now_s - at < min(_WINDOW_S, self.phase.silence_s)]
        if not window or not _sign(window[-1], sign, floor):
            return False
        if sign == "gpu":
            return True
        seconds = sum(rates.seconds for rates in window)
        return sum(float(getattr(rates, sign)) * rates.seconds for rates in window) / seconds >= floor


def select_last_whole_lines(block: bytes, max_bytes: int) -> bytes:
    if len(block) <= max_bytes:
        return block
    begin = block.find(b"\n", len(block) - max_bytes) + 1
    return block[begin:] if begin else block[-max_bytes:]


def _sign(rates: ActivityRates, sign: str, floor: float) -> bool:
    if sign == "gpu":  # one that only waits in a collective draws little power and reads no memory
        return rates.gpu > 0 and (rates.gpu_power >= floor or rates.gpu_memory >= _MEMORY_BUSY)
    if sign == "network" and rates.cpu < _NETWORK_CPU:  # it is somebody else's
        return False
    return float(getattr(rates, sign)) >= floor


class _LineHistory:
    def __init__(self) -> None:
        self._numbers_by_kind: dict[str, list[str]] = {}
        self._bar = ""

    def learn(self, texts: Iterable[str]) -> Literal["new kind", "new numbers", "nothing new"]:
        """Take lines; return what is new in them. Clocks, addresses and process numbers say nothing."""
        news: Literal["new kind", "new numbers", "nothing new"] = "nothing new"
        for text in texts:
            bare = _CLOCK.sub("", text[:_CHARS])
            kind, numbers = _NUMBER.sub("#", bare), _NUMBER.findall(bare)
            before = self._numbers_by_kind.get(kind)
            if before is None:
                news = "new kind"
            elif before != numbers and news == "nothing new":
                news = "new numbers"
            if before is not None or len(self._numbers_by_kind) < _MOST:
                self._numbers_by_kind[kind] = numbers
        return news

    def has_bar_changed(self, unfinished: str) -> bool:
        """Whether a line that is being rewritten (a progress bar) went on: neither its clock nor a spinner counts."""
        bar, before = _CLOCK.sub("", _SPINNER.sub("", _BAR_END.sub("", unfinished[-_CHARS:]))), self._bar
        self._bar = bar
        return bar != before
