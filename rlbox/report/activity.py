"""What a stage is busy with besides its steps: a start, weights that load, a bar that its log shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import decimal_size_text, duration_text, moment
from rlbox.job.names import METRICS_FILE
from rlbox.logs.lines import strip_terminal_codes
from rlbox.logs.progress import (
    ProgressBar,
    ProgressReading,
    find_last_bar_unless_full,
    find_progress_lines,
    merge_readings,
    parse_metrics_record,
    parse_progress,
)
from rlbox.record.resources import RESOURCES_FILE, Sample, estimate_seconds_until_disk_full, parse_sample
from rlbox.record.state import RunState, ServiceState, StageState
from rlbox.system.json_files import parse_json_lines
from rlbox.system.tail import read_last_whole_lines

_CELLS = 16
_LEAST_WEIGHTS = 50_000_000
"""Bytes from which on weights are most of what a start reads; below, imports are."""
_RATE_S = 30.0
_COMPUTES_PCT = 10


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What goes on, and how far it is.

    `starting_service` is empty when it is the stage itself. `share` (0-1) and `remaining_s` are None where
    nobody tells; `label` is what a log calls it, `facts` what was measured of it.
    """

    starting_service: str = ""
    service_started_unix_s: float | None = None
    share: float | None = None
    remaining_s: float | None = None
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
    return Activity(share=bar.share, remaining_s=bar.left_s, label=bar.label) if bar else None


def _start(service: ServiceState, samples: Sequence[Sample], bar: ProgressBar | None) -> Activity:
    own = [(at, part) for one in samples if (part := one.parts.get(service.name)) and (at := moment(one.t)) is not None]
    read, total, facts = 0, service.weights_bytes, []
    if own:
        read = own[-1][1].read_bytes
        known = total >= _LEAST_WEIGHTS
        facts = [
            f"{decimal_size_text(read)} of {decimal_size_text(total)} read"
            if known
            else f"{decimal_size_text(read)} read"
        ]
        if own[-1][1].cpu_pct >= _COMPUTES_PCT:
            facts.append(f"{own[-1][1].cpu_pct / 100:.1f} cores")
    share = left_s = None
    if bar:
        share, left_s = bar.share, bar.left_s
    elif read and total >= _LEAST_WEIGHTS:
        rate = _rate([(at, part.read_bytes) for at, part in own])
        share, left_s = min(1.0, read / total), max(0, total - read) / rate if rate else None
    return Activity(
        starting_service=service.name,
        service_started_unix_s=moment(service.started_at),
        share=share,
        remaining_s=left_s,
        label=bar.label if bar else "",
        facts=tuple(facts),
    )


def _rate(history: Sequence[tuple[float, int]]) -> float:
    """Return how many bytes a second were read of late; 0 where that is not known."""
    recent = [row for row in history if history[-1][0] - row[0] <= _RATE_S]
    (first_s, first), (last_s, last) = recent[0], recent[-1]
    return max(0, last - first) / (last_s - first_s) if last_s > first_s else 0.0


def _bar_text(share: float) -> str:
    """Return a bar of `share` (0-1), and the number."""
    full = round(_CELLS * share)
    return f"{'█' * full}{'░' * (_CELLS - full)} {100 * share:.0f} %"


def activity_text(doing: Activity, now_s: float, *, bar: bool) -> str:
    """Return what goes on in one line; not as a `bar`, the number alone is told."""
    since = (
        f", {duration_text(now_s - doing.service_started_unix_s)}" if doing.service_started_unix_s is not None else ""
    )
    far = [] if doing.share is None else [_bar_text(doing.share) if bar else f"{100 * doing.share:.0f} %"]
    left = [] if doing.remaining_s is None else [f"{duration_text(doing.remaining_s)} left"]
    parts = [f"{doing.starting_service} starts{since}" if doing.starting_service else "", *far, *left, *doing.facts]
    return " · ".join(part for part in (*parts, doing.label) if part)


_END_BYTES = 64 * 1024
_LINE_LIMIT = 300

_NOTHING = ProgressReading()


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


def read_run_snapshot(run_dir: Path, state: RunState) -> RunSnapshot:
    """Return what a run's directory tells now; what cannot be read is left out."""
    stage = next((s for s in state.stages if s.state in ("starting", "running")), None)
    samples = _parse_samples(read_last_whole_lines(run_dir / RESOURCES_FILE, _END_BYTES))
    history = [(at, sample.disk_free_bytes) for sample in samples if (at := moment(sample.t)) is not None]
    sample, full_in_s = samples[-1] if samples else None, estimate_seconds_until_disk_full(history)
    if stage is None:
        return RunSnapshot(state=state, sample=sample, full_in_s=full_in_s)
    # Its own log last: what a stage says of itself counts most.
    paths = [*(f"{service.name}.log" for service in stage.services), "stage.log"]
    logs = {
        path: read_last_whole_lines(path, _END_BYTES)
        for name in paths
        if (path := run_dir / stage.directory / name).is_file()
    }
    rows = parse_json_lines(read_last_whole_lines(run_dir / METRICS_FILE, _END_BYTES).splitlines())
    own = [
        reading for row in rows if row.get("stage", stage.name) == stage.name and (reading := parse_metrics_record(row))
    ]
    return RunSnapshot(
        state=state,
        stage=stage,
        progress=merge_readings([*own, *(reading for data in logs.values() for reading in _parse_readings(data))]),
        doing=find_activity(
            stage, samples, {path.stem: find_last_bar_unless_full(data) for path, data in logs.items()}
        ),
        sample=sample,
        full_in_s=full_in_s,
        line=_find_last_line(logs),
    )


def _get_mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # a stage that is tried again moves its logs
        return 0


def _parse_samples(data: bytes) -> list[Sample]:
    return [sample for row in parse_json_lines(data.splitlines()) if (sample := parse_sample(row))]


def _parse_readings(data: bytes) -> list[ProgressReading]:
    texts = (text.decode("utf-8", "replace") for _, line in find_progress_lines(data) for text in line.split(b"\r"))
    return [reading for text in texts if (reading := parse_progress(text))]


def _find_last_line(logs: Mapping[Path, bytes]) -> str:
    """Return the last line of the log that grew last, with the log's name before it."""
    for path in sorted(logs, key=_get_mtime_ns, reverse=True):
        lines = logs[path].decode("utf-8", "replace").replace("\r", "\n").split("\n")
        for line in reversed(lines):
            text = "".join(c if c.isprintable() else " " for c in strip_terminal_codes(line)[:_LINE_LIMIT]).strip()
            if text:
                return f"{path.stem}: {text}"
    return ""
