"""Progress, rates and metrics as the lines of known trainers and servers print them, and their progress bars.

Known: verl (`step:12 - actor/pg_loss:0.1 - …`), slime and Megatron-LM (`rollout 3: {…}`, `perf 3: {…}`, `iteration
10/ 100 | … | lm loss: …`), OpenRLHF (`Global step 4: {…}`), TRL and the Hugging Face trainer (`{'loss': 0.69, …}`),
vLLM and SGLang (`generation throughput: 104.5 tokens/s`), `step 12 loss 0.5`; bars of tqdm with numbers (`67/128`) and
with bytes (`1.20G/2.70G`), and vLLM's and SGLang's `25% Completed | 1/4`.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rlbox.foreign import number_to_finite_float, parse_decimal_number
from rlbox.logs.lines import strip_ansi_escapes, strip_ray_prefix_and_repeat
from rlbox.logs.log_file import LogTimes
from rlbox.secrets.url_credentials import compile_re2_bytes
from rlbox.system.safe_files import open_regular_file

LINE_LIMIT = 16 * 1024
"""Characters of a line that are looked at: the longest line that tells of progress has about 6000."""

_CANDIDATE = (
    rb"(?i)step:\d+ - |tokens?/s|\d(?:s/it|it/s)|iteration +\d+/|'[\w/.@ -]{1,80}': '?[-+]?[\d.]"
    rb"|step[ =:]+\d+[^\n]*(?:loss|reward)|(?:samples|steps|tokens)(?:/s|_per_second|_per_sec)|\d%\|"
)
"""What a line must hold to be worth a look, so that the text of a log is searched once, not line by line."""
STEP_LINE = r"(?i)\b(?:step|rollout|perf|eval)[ =:]+\d|\biteration +\d+/|\d%\|"
"""What a line must hold to tell of a step, as RE2 reads it."""

# No part of these can be read in two ways, so that a line takes time by its length, whatever it holds.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_VERL = r"\bstep:(\d{1,15}) - (.*)"
_DICT_PAIR = rf"['\"]([\w/.@ +-]{{1,80}})['\"]: ['\"]?(?:np\.float\d+\()?({_NUMBER})\b"
_DICT_HEAD = r"\b(?:rollout|perf|[Gg]lobal[ _]step|[Tt]rain step|step|eval)[ :=]+(\d{1,15})\s*:?\s*$"
_MEGATRON = r"\biteration +(\d{1,15})/ *(\d{1,15}) \|(.*)"
_SERVER = rf"\b(prompt|input|gen(?:eration)?|output)\s+throughput(?: \(token/s\))?: ({_NUMBER})"
_COUNT = r"(\d{1,15}(?:\.\d{1,6})?)([kMGT]?)i?B?"
_BAR = (
    rf"\b\d{{1,3}}% ?(?:Completed )?\|(?:[^|\[]{{0,200}}\|)? *{_COUNT}/{_COUNT} "
    rf"\[[\d:?]*(?:<([\d:?]{{1,12}}))?(?:, *(?:({_NUMBER})|\?)(s/it|it/s)?)?([^\]]*)"
)
_BAR_PAIR = rf"([A-Za-z][\w/.]{{0,60}})=({_NUMBER})"
_NO_STEPS = r"(?i)load|fetch|map|tokeniz|generat|process|captur|render|filter|sav|eval|import|warm|compil"
"""Words before a bar that counts something else than steps."""
_PLAIN = r"\b[Ss]tep[ =:]+(\d{1,15})(?:/(\d{1,15}))?\b(.*)"
_PLAIN_PAIR = rf"\b([A-Za-z][\w/.]{{0,60}})[ =:]{{1,3}}({_NUMBER})(?:[\s,;|]|$)"
_PER_S = rf"(?<![\d.])({_NUMBER})\s*(tokens?|samples|steps)/s(?:ec)?\b"

_RATES = {
    "perf/throughput": "tokens/s per GPU",
    "perf/tokens_per_gpu_per_sec": "tokens/s per GPU",
    "tokens_per_gpu_per_sec": "tokens/s per GPU",
    "train_tokens_per_second": "tokens/s",
    "train_samples_per_second": "samples/s",
    "train_steps_per_second": "steps/s",
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "steps_per_second": "steps/s",
}
_STEP_SECONDS = ("timing_s/step", "perf/time_per_step", "timing/step_total", "perf/step_time")
_ROW_STEPS = ("step", "rollout", "iteration")
_SHORTEST_S = 1e-9
_MOST_STEPS = 1e15
"""What is beyond them is no measurement: a rate would be infinite, a step have more digits than a page is wide."""
_STEP_NAMES = ("training/global_step", "global_step", "step", "train/step", "rollout/step")

_RANKS = (
    re.compile(r"(?:^|/)(?:lm |train_|policy_|pg_|actor_)?loss$"),
    re.compile(r"(?:^|/)(?:mean_|raw_)?rewards?(?:/mean)?$|critic/(?:score|rewards)/mean$|/test_score$|success_rate$"),
    re.compile(r"loss(?! scale)|reward|accuracy|score"),
    re.compile(r"kl$|kl_loss|entropy|grad[_ ]norm"),
)
LOWEST_RANK = len(_RANKS)


@dataclass(frozen=True, kw_only=True)
class ProgressReading:
    """What a line tells: `step` of `total_or_0`, `rate_by_unit` by unit (`tokens/s`), and `metrics` by name."""

    step: int | None = None
    total_or_0: int = 0
    rate_by_unit: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class OffsetLine(NamedTuple):
    offset_in_block: int
    line: bytes


class TimedReading(NamedTuple):
    unix_time: float | None
    """Seconds since 1970; None where the log has no file of times."""
    reading: ProgressReading


def parse_progress_line(line: str) -> ProgressReading | None:
    """Return what a line of a log tells of progress; None when it tells nothing."""
    text = _strip(line)
    for parse in (_parse_verl, _parse_megatron, _parse_server, _parse_dict, _parse_step_bar, _parse_plain):
        if reading := parse(text):
            return reading
    return None


def _strip(line: str) -> str:
    return strip_ray_prefix_and_repeat(strip_ansi_escapes(line[:LINE_LIMIT]))


def find_progress_candidates(block: bytes) -> list[OffsetLine]:
    """Return the lines of a block of a log that may tell of progress; the block is searched as a whole."""
    lines: list[OffsetLine] = []
    at = 0
    while match := _compile_candidate().search(block, at):
        start = block.rfind(b"\n", 0, match.start()) + 1
        end = block.find(b"\n", match.end())
        lines.append(OffsetLine(start, block[start : end if end >= 0 else len(block)]))
        if end < 0:
            break
        at = end + 1
    return lines


@functools.cache
def _compile_candidate() -> re.Pattern[bytes]:
    return compile_re2_bytes(_CANDIDATE)


def parse_metrics_record(record: object) -> ProgressReading | None:
    """Return what a row of `metrics.jsonl` tells; None for one that is torn or holds no number.

    `step`, else `rollout` or `iteration`, is its step; names that hold text (`stage`) are left out.
    """
    if not isinstance(record, Mapping):
        return None
    found = ((str(name), number_to_finite_float(value)) for name, value in record.items())
    numbers = {name: value for name, value in found if value is not None}
    named = next((name for name in _ROW_STEPS if name in numbers), "")
    step = _find_step(numbers, (named,))
    numbers.pop(named, None)
    return ProgressReading(step=step, metrics=numbers) if numbers else None


def merge_readings(readings: Iterable[ProgressReading]) -> ProgressReading:
    """Return all that readings, oldest first, tell together: of each name the last value."""
    step, total = None, 0
    rates: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for reading in readings:
        step = reading.step if reading.step is not None else step
        total = reading.total_or_0 or total
        rates |= reading.rate_by_unit
        metrics |= reading.metrics
    return ProgressReading(
        step=step, total_or_0=total if step is None or total >= step else 0, rate_by_unit=rates, metrics=metrics
    )


def estimate_remaining_s(reading: ProgressReading) -> float | None:
    rate = reading.rate_by_unit.get("steps/s", 0.0)
    if not reading.total_or_0 or reading.step is None or rate <= 0:
        return None
    return max(0, reading.total_or_0 - reading.step) / rate


def select_ranked_metrics(metrics: Mapping[str, float], limit: int = 4) -> dict[str, float]:
    """Return the few metrics that a person looks at first: losses and rewards, then what keeps a run healthy."""
    ranked = sorted(metrics, key=lambda name: (get_metric_rank(name), len(name), name))
    return {name: metrics[name] for name in ranked[:limit] if get_metric_rank(name) < LOWEST_RANK}


def get_metric_rank(name: str) -> int:
    """Return how early a person wants to see a metric: 0 losses, 1 rewards, then others, the rest `LOWEST_RANK`."""
    return next((rank for rank, pattern in enumerate(_RANKS) if pattern.search(name)), LOWEST_RANK)


def _parse_verl(text: str) -> ProgressReading | None:
    found = re.search(_VERL, text)
    return _make_reading(int(found[1]), 0, _split_pairs(found[2], " - ")) if found else None


def _parse_megatron(text: str) -> ProgressReading | None:
    found = re.search(_MEGATRON, text)
    if not found:
        return None
    pairs = _split_pairs(found[3], "|")
    seconds = pairs.pop("elapsed time per iteration (ms)", 0.0) / 1000
    rates = {"steps/s": 1 / seconds} if seconds > _SHORTEST_S else {}
    if rates and "global batch size" in pairs:
        rates["samples/s"] = pairs["global batch size"] / seconds
    return _make_reading(int(found[1]), int(found[2]), pairs, rates)


def _parse_server(text: str) -> ProgressReading | None:
    rates = {
        "tokens/s in" if direction in ("prompt", "input") else "tokens/s out": value
        for direction, value in _find_pairs(_SERVER, text).items()
    }
    return ProgressReading(rate_by_unit=rates) if rates else None


def _parse_dict(text: str) -> ProgressReading | None:
    start, end = text.find("{"), text.rfind("}")
    pairs = _find_pairs(_DICT_PAIR, text[start:end]) if 0 <= start < end else {}
    if not pairs:
        return None
    head = re.search(_DICT_HEAD, text[max(0, start - 200) : start])
    bar = _parse_step_bar(text[:start]) or ProgressReading()
    reading = _make_reading(int(head[1]) if head else None, 0, pairs)
    return ProgressReading(
        step=reading.step if reading.step is not None else bar.step,
        total_or_0=bar.total_or_0,
        rate_by_unit={**bar.rate_by_unit, **reading.rate_by_unit},
        metrics={**bar.metrics, **reading.metrics},
    )


def _parse_step_bar(text: str) -> ProgressReading | None:
    bar = _find_last_bar(text)
    if bar is None or not _counts_steps(text, bar):
        return None
    value = _finite(bar[6] or "") or 0.0
    rate = value if bar[7] == "it/s" else 1 / value if value > _SHORTEST_S and bar[7] else 0.0
    rates = {"steps/s": rate} if rate else {}
    return ProgressReading(
        step=int(bar[1]), total_or_0=int(bar[3]), rate_by_unit=rates, metrics=_find_pairs(_BAR_PAIR, bar[8])
    )


def _find_last_bar(text: str) -> re.Match[str] | None:
    bar = None
    for bar in re.finditer(_BAR, text):  # noqa: B007 - the last one counts
        pass
    return bar


def _counts_steps(text: str, bar: re.Match[str]) -> bool:
    is_whole = bar[1].isdecimal() and bar[3].isdecimal() and not bar[2] and not bar[4]
    return is_whole and not re.search(_NO_STEPS, text[max(0, bar.start() - 80) : bar.start()])


def _parse_plain(text: str) -> ProgressReading | None:
    told = ((f"{unit.rstrip('s')}s/s", _finite(number)) for number, unit in re.findall(_PER_S, text))
    rates = {unit: value for unit, value in told if value is not None}
    found = re.search(_PLAIN, text)
    if not found:
        return ProgressReading(rate_by_unit=rates) if rates else None
    pairs = _find_pairs(_PLAIN_PAIR, re.sub(_PER_S, "", found[3]))
    return _make_reading(int(found[1]), int(found[2] or 0), pairs, rates)


def _find_pairs(pattern: str, text: str) -> dict[str, float]:
    found = ((name.strip(), _finite(number)) for name, number in re.findall(pattern, text))
    return {name: value for name, value in found if value is not None}


def _split_pairs(text: str, separator: str) -> dict[str, float]:
    parts = (part.rpartition(":") for part in text.split(separator))
    found = ((name.strip(), _finite(number.strip())) for name, _, number in parts)
    return {name: value for name, value in found if name and value is not None}


def _make_reading(
    step: int | None, total: int, pairs: dict[str, float], more_rates: Mapping[str, float] | None = None
) -> ProgressReading:
    rates = {_RATES[name]: pairs[name] for name in pairs if name in _RATES}
    seconds = next((pairs[name] for name in _STEP_SECONDS if pairs.get(name)), 0.0)
    if seconds > _SHORTEST_S:
        rates["steps/s"] = 1 / seconds
    return ProgressReading(
        step=_find_step(pairs, _STEP_NAMES) if step is None else step,
        total_or_0=total,
        rate_by_unit={**rates, **(more_rates or {})},
        metrics={name: value for name, value in pairs.items() if name not in _STEP_NAMES},
    )


def _find_step(numbers: Mapping[str, float], names: Iterable[str]) -> int | None:
    return next((int(numbers[name]) for name in names if abs(numbers.get(name, math.inf)) < _MOST_STEPS), None)


def _finite(number: str) -> float | None:
    value = parse_decimal_number(number)
    return value if value is not None and math.isfinite(value) else None


_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_CLOCK = re.compile(r"^(?:[\[(]?\d{1,4}[-/:][\d\-/:., TZ]*[\])]? ?|[A-Z]+ |\([^()]{0,80} pid=\d+\) ?|\[[^\]]*\] ?)+")
_LABEL = 60
_LINES = 12
"""A bar with more lines behind it than these is one that nobody goes on with."""


@dataclass(frozen=True, kw_only=True)
class ProgressBar:
    """A bar: `done` of `total`; `left_s` as its program tells it, None where it does not."""

    label: str
    done: float
    total: float
    left_s: float | None = None

    @property
    def share(self) -> float:
        return min(1.0, self.done / self.total)


def parse_bar_not_counting_steps(line: str) -> ProgressBar | None:
    """Return the bar in a line of a log; None without one, and for one that counts steps."""
    text = _strip(line)
    bar = _find_last_bar(text)
    if bar is None or _counts_steps(text, bar):
        return None
    done, total = float(bar[1]) * _UNITS[bar[2]], float(bar[3]) * _UNITS[bar[4]]
    label = _CLOCK.sub("", text[: bar.start()].strip()).rstrip(": ")[:_LABEL]
    left_s = _parse_duration_s(bar[5] or "")
    return ProgressBar(label=label, done=done, total=total, left_s=left_s) if 0 < total >= done else None


def find_last_nonstep_bar_unless_full(block: bytes) -> ProgressBar | None:
    """Return the bar that a log's last lines show, unless it is full; each state of a bar that is rewritten counts."""
    lines = block.decode("utf-8", "replace").replace("\r", "\n").rstrip("\n").split("\n")
    for line in reversed(lines[-_LINES:]):
        if "%" in line and (bar := parse_bar_not_counting_steps(line)):
            return bar if bar.done < bar.total else None
    return None


def _parse_duration_s(clock: str) -> float | None:
    parts = clock.split(":")
    if len(parts) not in (2, 3) or not all(part.isdecimal() for part in parts):
        return None
    return float(sum(int(part) * 60**at for at, part in enumerate(reversed(parts))))


_BLOCK = 1 << 20
_BLOCKS = 64
"""Blocks of a log that are read at most: of a longer one that many, evenly spaced, its beginning and end among them."""

_STATES = 500
"""States of one line that are looked at, about."""


def read_log_progress(path: Path) -> Iterator[TimedReading]:
    """Yield what the lines of a log report.

    A file that is missing or cannot be read tells nothing.
    """
    times = LogTimes(path)
    try:
        with open_regular_file(path) as file:
            for start, block in _read_blocks(file):
                for at, line in find_progress_candidates(block):
                    for offset, text in _iterate_states(line):
                        if reading := parse_progress_line(text.decode("utf-8", "replace")):
                            yield TimedReading(times.find_write_time_unix(start + at + offset), reading)
    except OSError:
        return


def _read_blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Return blocks of whole lines, each with its offset; a line over the edge belongs to the block before."""
    size = os.fstat(file.fileno()).st_size
    count = min(_BLOCKS, math.ceil(size / _BLOCK))
    for number in range(count):
        start = number * _BLOCK if count < _BLOCKS else number * (size - _BLOCK) // (_BLOCKS - 1)
        file.seek(start)
        begin = start + (len(file.readline(_BLOCK)) if start else 0)
        yield begin, file.read(max(0, start + _BLOCK - begin)) + file.readline(_BLOCK)


def _iterate_states(line: bytes) -> Iterator[tuple[int, bytes]]:
    states = line.split(b"\r")
    stride = max(1, len(states) // _STATES)
    offset = 0
    for number, state in enumerate(states):
        if state and (number % stride == 0 or number >= len(states) - 2):
            yield offset, state
        offset += len(state) + 1
