"""What a stage is busy with besides its steps: a start, weights that load, a bar that its log shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rlbox.amounts import duration_text, moment, size_text
from rlbox.job.names import METRICS_FILE
from rlbox.logs.lines import strip_terminal_codes
from rlbox.logs.progress import (
    ProgressBar,
    ProgressReading,
    find_last_bar,
    find_progress_lines,
    merge_readings,
    parse_metrics_record,
    parse_progress,
)
from rlbox.record.resources import RESOURCES_FILE, Sample, estimate_seconds_until_disk_full, parse_sample
from rlbox.record.state import RunState, ServiceState, StageState
from rlbox.system.json_files import parse_json_lines
from rlbox.system.tail import read_last_bytes

_CELLS = 16
_LEAST_WEIGHTS = 50_000_000
"""Bytes from which on weights are most of what a start reads; below, imports are."""
_RATE_S = 30.0
_COMPUTES_PCT = 10


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What goes on, and how far it is.

    `service` starts, since `since_s` (seconds since 1970); empty: it is the stage itself. `share` (0-1) and `left_s`
    are None where nobody tells; `label` is what a log calls it, `facts` what was measured of it.
    """

    service: str = ""
    since_s: float | None = None
    share: float | None = None
    left_s: float | None = None
    label: str = ""
    facts: tuple[str, ...] = ()


def find_activity(
    stage: StageState, samples: Sequence[Sample], bars: Mapping[str, ProgressBar | None]
) -> Activity | None:
    """Return what a stage is busy with; None for one whose steps tell it.

    Parameters
    ----------
    samples
        The last rows of what the run used, the oldest first.
    bars
        The bar that each log shows now, by the log's name: a service's, or `stage`.
    """
    service = next((one for one in stage.services if one.state == "starting"), None)
    if service:
        return _start(service, samples, bars.get(service.name))
    bar = bars.get("stage")
    return Activity(share=bar.share, left_s=bar.left_s, label=bar.label) if bar else None


def _start(service: ServiceState, samples: Sequence[Sample], bar: ProgressBar | None) -> Activity:
    own = [(at, part) for one in samples if (part := one.parts.get(service.name)) and (at := moment(one.t)) is not None]
    read, total, facts = 0, service.weights_bytes, []
    if own:
        read = own[-1][1].read_bytes
        known = total >= _LEAST_WEIGHTS
        facts = [f"{size_text(read)} of {size_text(total)} read" if known else f"{size_text(read)} read"]
        if own[-1][1].cpu_pct >= _COMPUTES_PCT:
            facts.append(f"{own[-1][1].cpu_pct / 100:.1f} cores")
    share = left_s = None
    if bar:
        share, left_s = bar.share, bar.left_s
    elif read and total >= _LEAST_WEIGHTS:
        rate = _rate([(at, part.read_bytes) for at, part in own])
        share, left_s = min(1.0, read / total), max(0, total - read) / rate if rate else None
    return Activity(
        service=service.name,
        since_s=moment(service.started_at),
        share=share,
        left_s=left_s,
        label=bar.label if bar else "",
        facts=tuple(facts),
    )


def _rate(history: Sequence[tuple[float, int]]) -> float:
    """Return how many bytes a second were read of late; 0 where that is not known."""
    recent = [row for row in history if history[-1][0] - row[0] <= _RATE_S]
    (first_s, first), (last_s, last) = recent[0], recent[-1]
    return max(0, last - first) / (last_s - first_s) if last_s > first_s else 0.0


def bar_text(share: float) -> str:
    """Return a bar of `share` (0-1), and the number."""
    full = round(_CELLS * share)
    return f"{'█' * full}{'░' * (_CELLS - full)} {100 * share:.0f} %"


def activity_text(doing: Activity, now_s: float, *, bar: bool) -> str:
    """Return what goes on in one line; not as a `bar`, the number alone is told."""
    since = f", {duration_text(now_s - doing.since_s)}" if doing.since_s is not None else ""
    far = [] if doing.share is None else [bar_text(doing.share) if bar else f"{100 * doing.share:.0f} %"]
    left = [] if doing.left_s is None else [f"{duration_text(doing.left_s)} left"]
    parts = [f"{doing.service} starts{since}" if doing.service else "", *far, *left, *doing.facts]
    return " · ".join(part for part in (*parts, doing.label) if part)


_END_BYTES = 64 * 1024
_LINE_LIMIT = 300

_NOTHING = ProgressReading()

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """One look at a run: `stage` is the one that goes on, `line` the last of its logs with that log's name before it.

    `progress` is what logs and metrics of the stage told last, `doing` what it is busy with besides its steps;
    `full_in_s` when the disk will be full at its present rate (None: it does not fill).
    """

    state: RunState
    stage: StageState | None = None
    progress: ProgressReading = _NOTHING
    doing: Activity | None = None
    sample: Sample | None = None
    full_in_s: float | None = None
    line: str = ""


class RunWatch:
    """Looks at a run's directory again and again; a file that did not grow is not read again."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[Path, tuple[tuple[int, int], Any]] = {}

    def look(self, state: RunState) -> RunSnapshot:
        """Return the facts now; what cannot be read is left out."""
        stage = next((s for s in state.stages if s.state in ("starting", "running")), None)
        samples = self._read(self._run_dir / RESOURCES_FILE, _samples) or []
        history = [(at, sample.disk_free_bytes) for sample in samples if (at := moment(sample.t)) is not None]
        return RunSnapshot(
            state=state,
            stage=stage,
            progress=self._progress(stage) if stage else _NOTHING,
            doing=find_activity(stage, samples, self._bars(stage)) if stage else None,
            sample=samples[-1] if samples else None,
            full_in_s=estimate_seconds_until_disk_full(history),
            line=self._last_line(stage) if stage else "",
        )

    def _progress(self, stage: StageState) -> ProgressReading:
        logs = [self._read(path, _log_readings) or [] for path in self._logs(stage)]
        rows = self._read(self._run_dir / METRICS_FILE, _rows) or []
        own = [
            found for row in rows if row.get("stage", stage.name) == stage.name and (found := parse_metrics_record(row))
        ]
        return merge_readings([*own, *(reading for readings in logs for reading in readings)])

    def _bars(self, stage: StageState) -> dict[str, ProgressBar | None]:
        return {path.stem: self._read(path, find_last_bar) for path in self._logs(stage)}

    def _last_line(self, stage: StageState) -> str:
        logs = sorted((path for path in self._logs(stage) if _stamp(path)), key=lambda path: _stamp(path)[0])
        for path in reversed(logs):
            if line := self._read(path, _last_line):
                return f"{path.stem}: {line}"
        return ""

    def _logs(self, stage: StageState) -> list[Path]:
        """Return the logs of a stage, its own last: what it says of itself counts most."""
        folder = self._run_dir / stage.directory
        return [*(folder / f"{service.name}.log" for service in stage.services), folder / "stage.log"]

    def _read(self, path: Path, read: Callable[[bytes], T]) -> T | None:
        key = path / read.__name__
        stamp = _stamp(path)
        known = self._known.get(key)
        if known is None or known[0] != stamp:
            self._known[key] = known = (stamp, read(read_last_bytes(path, _END_BYTES)) if stamp != (0, 0) else None)
        found: T | None = known[1]
        return found


def _stamp(path: Path) -> tuple[int, int]:
    try:
        facts = path.stat()
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_size


def _samples(data: bytes) -> list[Sample]:
    return [sample for row in parse_json_lines(data.splitlines()) if (sample := parse_sample(row))]


def _rows(data: bytes) -> list[dict[str, Any]]:
    return list(parse_json_lines(data.splitlines()))


def _log_readings(data: bytes) -> list[ProgressReading]:
    texts = (text.decode("utf-8", "replace") for _, line in find_progress_lines(data) for text in line.split(b"\r"))
    return [found for text in texts if (found := parse_progress(text))]


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    for line in reversed(lines):
        if shown := "".join(c if c.isprintable() else " " for c in strip_terminal_codes(line)[:_LINE_LIMIT]).strip():
            return shown
    return ""
