"""The live view of a run as lines that fit a terminal of any size: what goes on, and how far it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rlbox.amounts import (
    decimal_size_text,
    duration_text,
    duration_text_precise_below_minute,
    gpu_gib_or_mib_text,
    pad_translated,
    zoned_iso_to_unix,
)
from rlbox.gate.line_rules import HELD_UNLESS_BROKEN
from rlbox.i18n import _, join, translate
from rlbox.job.names import METRICS_FILE
from rlbox.logs.lines import strip_ansi_escapes
from rlbox.logs.progress import (
    ProgressBar,
    ProgressReading,
    estimate_remaining_s,
    find_last_nonstep_bar_unless_full,
    find_progress_candidates,
    merge_readings,
    parse_metrics_record,
    parse_progress_line,
    select_ranked_metrics,
)
from rlbox.logs.run_logs import get_mtime_or_zero
from rlbox.record.resources import RESOURCES_FILE, ResourceSample, estimate_seconds_until_disk_full, parse_sample
from rlbox.record.state import RunState, ServiceState, StageState
from rlbox.system.json_files import parse_valid_json_objects
from rlbox.system.tail import read_tail_lines_or_empty
from rlbox.terminal import sanitize_for_terminal

_CELLS = 16
_COMPUTES_PCT = 10


@dataclass(frozen=True, kw_only=True)
class StageActivity:
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


def find_stage_activity(
    stage: StageState, samples: Sequence[ResourceSample], bar_by_log: Mapping[str, ProgressBar | None]
) -> StageActivity | None:
    """Return what a stage is busy with; None for one whose steps tell it.

    `samples` are the last ones, the oldest first; `bar_by_log` has them by the log's name: a service's, or `stage`.
    """
    service = next((one for one in stage.services if one.state == "starting"), None)
    if service:
        return _start(service, samples, bar_by_log.get(service.name))
    bar = bar_by_log.get("stage")
    return StageActivity(share=bar.share, remaining_s=bar.left_s, label=bar.label) if bar else None


def _start(service: ServiceState, samples: Sequence[ResourceSample], bar: ProgressBar | None) -> StageActivity:
    part = next((sample.parts[service.name] for sample in reversed(samples) if service.name in sample.parts), None)
    facts = [_("{size} read").format(size=decimal_size_text(part.read_bytes))] if part else []
    if part and part.cpu_pct >= _COMPUTES_PCT:
        facts.append(_("{count:.1f} cores").format(count=part.cpu_pct / 100))
    return StageActivity(
        starting_service=service.name,
        service_started_unix_s=zoned_iso_to_unix(service.started_at),
        share=bar.share if bar else None,
        remaining_s=bar.left_s if bar else None,
        label=bar.label if bar else "",
        facts=tuple(facts),
    )


def format_activity(activity: StageActivity, now_s: float, *, show_bar: bool) -> str:
    parts: list[str] = []
    if activity.starting_service:
        began = activity.service_started_unix_s
        starts = _("{service} starts").format(service=activity.starting_service)
        parts.append(join(", ", (starts, duration_text(now_s - began))) if began else starts)
    if activity.share is not None:
        full = round(_CELLS * activity.share)
        cells = f"{'█' * full}{'░' * (_CELLS - full)} " if show_bar else ""
        parts.append(f"{cells}{100 * activity.share:.0f} %")
    if activity.remaining_s is not None:
        parts.append(_("{time} left").format(time=duration_text(activity.remaining_s)))
    return join(" · ", [*parts, *activity.facts, *([activity.label] if activity.label else [])])


_END_BYTES = 64 * 1024
_LINE_LIMIT = 300


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """One look at a run: `stage` is the one that goes on, `last_log_line` has its log's name before it.

    `progress` is what logs and metrics of the stage told last, `activity` what it is busy with besides its steps;
    `disk_full_in_s` when the disk will be full at its present rate (None: it does not fill).
    """

    state: RunState
    stage: StageState | None = None
    progress: ProgressReading = field(default_factory=ProgressReading)
    activity: StageActivity | None = None
    sample: ResourceSample | None = None
    disk_full_in_s: float | None = None
    last_log_line: str = ""


def read_run_snapshot(run_dir: Path, state: RunState) -> RunSnapshot:
    stage = next((s for s in state.stages if s.state in ("starting", "running")), None)
    rows = parse_valid_json_objects(read_tail_lines_or_empty(run_dir / RESOURCES_FILE, _END_BYTES).splitlines())
    samples = [sample for row in rows if (sample := parse_sample(row))]
    history = [(at, sample.disk_free_bytes) for sample in samples if (at := zoned_iso_to_unix(sample.t)) is not None]
    sample, disk_full_in_s = samples[-1] if samples else None, estimate_seconds_until_disk_full(history)
    if stage is None:
        return RunSnapshot(state=state, sample=sample, disk_full_in_s=disk_full_in_s)
    # Its own log last: what a stage says of itself counts most.
    paths = [*(f"{service.name}.log" for service in stage.services), "stage.log"]
    logs = {
        path: read_tail_lines_or_empty(path, _END_BYTES)
        for name in paths
        if (path := run_dir / stage.directory / name).is_file()
    }
    rows = parse_valid_json_objects(read_tail_lines_or_empty(run_dir / METRICS_FILE, _END_BYTES).splitlines())
    own = [
        reading for row in rows if row.get("stage", stage.name) == stage.name and (reading := parse_metrics_record(row))
    ]
    return RunSnapshot(
        state=state,
        stage=stage,
        progress=merge_readings([*own, *(reading for data in logs.values() for reading in _parse_readings(data))]),
        activity=find_stage_activity(
            stage, samples, {path.stem: find_last_nonstep_bar_unless_full(data) for path, data in logs.items()}
        ),
        sample=sample,
        disk_full_in_s=disk_full_in_s,
        last_log_line=_find_last_line(logs),
    )


def _parse_readings(data: bytes) -> list[ProgressReading]:
    texts = (part.decode("utf-8", "replace") for __, at in find_progress_candidates(data) for part in at.split(b"\r"))
    return [reading for text in texts if (reading := parse_progress_line(text))]


def _find_last_line(logs: Mapping[Path, bytes]) -> str:
    for path in sorted(logs, key=get_mtime_or_zero, reverse=True):
        lines = logs[path].decode("utf-8", "replace").replace("\r", "\n").split("\n")
        for line in reversed(lines):
            text = "".join(c if c.isprintable() else " " for c in strip_ansi_escapes(line)[:_LINE_LIMIT]).strip()
            if text:
                return f"{path.stem}: {text}"
    return ""


STYLES = {
    "passed": "green",
    "failed": "red",
    "running": "cyan",
    "starting": "cyan",
    "interrupted": "yellow",
    "waiting": "dim",
    "not started": "dim",
    "skipped": "yellow",
}
_LABEL_WIDTH = 9
_NAME_WIDTH = 24
_WAITS_SHOWN = 3
_GPUS_SHOWN = 2
"""GPUs that are told one by one; a node's eight would not fit a line."""
_SLOWED_PCT = 80
"""Percent of what it could use below which a run is told to be slowed."""
_HELD_PCT = 100 - _SLOWED_PCT


def render_run_frame(facts: RunSnapshot, now_s: float, *, width: int, height: int) -> list[Text]:
    """Return the lines of the view, at most `height`, none longer than `width` cells.

    What is told of the stage that goes on comes first when there is little room; then the stages around it.
    """
    details = [_detail(label, text) for label, text in _details(facts, now_s) if text]
    room = max(1, height - 1 - len(details))
    lines = [_head(facts, now_s), *_stages(facts, now_s, room), *details][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _head(facts: RunSnapshot, now_s: float) -> Text:
    state = facts.state
    began = zoned_iso_to_unix(state.started_at)
    parts = [
        _("run {run}").format(run=state.run_id),
        state.target,
        state.profile and _("profile {profile}").format(profile=state.profile),
        _("attempt {attempt}").format(attempt=state.attempt) if state.attempt > 1 else "",
        duration_text(now_s - began) if began else "",
    ]
    return Text(" · ".join(translate(part) for part in parts if part), style="bold")


def _stages(facts: RunSnapshot, now_s: float, room: int) -> Iterable[Text]:
    stages = facts.state.stages
    begun = [i for i, stage in enumerate(stages) if stage.started_at]
    at = next((i for i, stage in enumerate(stages) if stage is facts.stage), begun[-1] if begun else 0)
    first = max(0, min(at - room // 2, len(stages) - room))
    width = min(_NAME_WIDTH, max((len(stage.name) for stage in stages), default=0))
    for stage in stages[first : first + room]:
        yield _stage(stage, width, now_s)


def _stage(stage: StageState, width: int, now_s: float) -> Text:
    name = stage.name if len(stage.name) <= width else stage.name[: width - 1] + "…"
    begun = stage.state not in ("waiting", "not started", "skipped")
    text = Text(f"  {name.ljust(width)}  ")
    text.append(_padded_state(stage), style=STYLES.get(stage.state, ""))
    text.append(f" {_stage_time(stage, now_s):>12}  " if begun else "")
    text.append(translate(_format_gate_count(stage)) if begun else "")
    if stage.state in ("starting", "running"):
        text.append("".join(f"  {service.name}:{translate(_(service.state))}" for service in stage.services))
    return text


def _padded_state(stage: StageState) -> str:
    return pad_translated(translate(_(stage.state)).upper(), 11)


def _details(facts: RunSnapshot, now_s: float) -> Iterable[tuple[str, str]]:
    stage, sample = facts.stage, facts.sample
    if stage:
        yield _("phase"), _phase(facts)
        yield _("doing"), format_activity(facts.activity, now_s, show_bar=True) if facts.activity else ""
        yield _("waits"), _waits(stage)
        yield _("speed"), _speed_text(facts)
        yield (
            _("metrics"),
            " · ".join(f"{name} {value:.4g}" for name, value in select_ranked_metrics(facts.progress.metrics).items()),
        )
    if sample:
        yield _("use"), _use(sample)
        yield _("machine"), _load_and_pressure_text(sample)
        yield _("gpu"), _gpus(sample)
        seconds = facts.disk_full_in_s
        left = _("{size} left").format(size=decimal_size_text(sample.disk_free_bytes))
        if seconds is not None:
            left += _(", full in {time} at the present rate").format(time=duration_text(seconds))
        yield _("disk"), left
    yield _("log"), facts.last_log_line


def _phase(facts: RunSnapshot) -> str:
    stage, sample = facts.stage, facts.sample
    if stage is None:
        return ""
    return stage.phase or (sample.phase if sample and sample.stage == stage.name else "")


def _waits(stage: StageState) -> str:
    broken = [join(" ", (rule.kind_and_rule, _("BROKEN"))) for rule in stage.gate if rule.state == "broken"]
    waiting = [rule for rule in stage.gate if rule.state == "waiting" and rule.kind not in HELD_UNLESS_BROKEN]
    so_far = _(" ({count} so far)")
    shown = [join("", (rule.kind_and_rule, so_far.format(count=rule.count) if rule.count else "")) for rule in waiting]
    more = len(shown) - _WAITS_SHOWN
    return join(" · ", [*broken, *shown[:_WAITS_SHOWN], *([_("{count} more").format(count=more)] if more > 0 else [])])


def _speed_text(facts: RunSnapshot) -> str:
    reading = facts.progress
    parts = [f"{value:.4g} {unit}" for unit, value in sorted(reading.rate_by_unit.items()) if unit != "steps/s"]
    if rate := reading.rate_by_unit.get("steps/s"):
        a_step = _("{time} a step").format(time=duration_text_precise_below_minute(1 / rate))
        parts.append(_("{rate:.3g} steps/s").format(rate=rate) if rate >= 1 else a_step)
    if reading.step is not None:
        step = _("step {step} of {total}") if reading.total_or_0 else _("step {step}")
        parts.insert(0, step.format(step=reading.step, total=reading.total_or_0))
    left = estimate_remaining_s(reading)
    return join(" · ", [*parts, *([_("{time} left").format(time=duration_text(left))] if left is not None else [])])


def _use(sample: ResourceSample) -> str:
    cpu = f"cpu {sample.cpu_pct:.0f} %"
    if sample.share_pct < _SLOWED_PCT:
        slowed = _(", {share:.0f} % of what it could use: others have {cores:.1f} cores")
        cpu += slowed.format(share=sample.share_pct, cores=sample.others_pct / 100)
    if (sample.held_pct or 0) >= _HELD_PCT:
        held = _(", the container's own CPU limit holds it back {percent:.0f} % of the time")
        cpu += held.format(percent=sample.held_pct)
    rates = ((_("read"), sample.read_bps), (_("write"), sample.write_bps), (_("net in"), sample.received_bps))
    shown = [join(" ", (name, f"{decimal_size_text(value)}/s")) for name, value in rates if value >= 1000]
    return join(" · ", [cpu, _("memory {size}").format(size=decimal_size_text(sample.resident_bytes)), *shown])


def _load_and_pressure_text(sample: ResourceSample) -> str:
    """Return the load of the machine, and what its processes waited for in the last ten seconds, where it is told."""
    waits_pct = (sample.waits_cpu_pct, sample.waits_io_pct, sample.waits_memory_pct)
    core, disk, memory = (round(value or 0) for value in waits_pct)
    told = ((core, _("a core {percent} %")), (disk, _("a disk {percent} %")), (memory, _("memory {percent} %")))
    waits = join(", ", [text.format(percent=value) for value, text in told if value])
    load = "" if sample.load is None else _("load {load:.1f}").format(load=sample.load)
    return join(" · ", filter(None, (load, waits and _("processes wait for {waits}").format(waits=waits))))


def _gpus(sample: ResourceSample) -> str:
    gpus = sample.gpus
    if len(gpus) > _GPUS_SHOWN:
        loads = sorted(gpu.utilization for gpu in gpus)
        power, memory = sum(gpu.power_w for gpu in gpus), sum(gpu.memory_bytes for gpu in gpus)
        loads_text = _("{count}: {least:.0f} to {most:.0f} %").format(count=len(gpus), least=loads[0], most=loads[-1])
        in_all = _("{memory} in all").format(memory=gpu_gib_or_mib_text(memory))
        return join(" · ", (loads_text, f"{power:.0f} W", in_all))
    return " · ".join(
        f"{g.index}: {g.utilization:.0f} % {g.power_w:.0f} W {gpu_gib_or_mib_text(g.memory_bytes)}" for g in gpus
    )


def _detail(label: str, text: str) -> Text:
    shown = sanitize_for_terminal(translate(text))
    style = "red" if label == "waits" and "BROKEN" in text else "dim" if label == "log" else ""
    return Text.assemble((pad_translated(label, _LABEL_WIDTH), "dim"), (shown, style))


def _format_gate_count(stage: StageState) -> str:
    held = sum(rule.state == "held" for rule in stage.gate)
    broken = sum(rule.state == "broken" for rule in stage.gate)
    text = _("{held}/{count} held, {broken} broken") if broken else _("{held}/{count} held")
    return text.format(held=held, count=len(stage.gate), broken=broken)


def _stage_time(stage: StageState, now_s: float) -> str:
    began, ended = zoned_iso_to_unix(stage.started_at), zoned_iso_to_unix(stage.ended_at)
    if began is None:
        return ""
    return duration_text(stage.seconds or (ended or now_s) - began)


_LOOK_S = 1.0
"""Files beside the state are looked at this often at most."""
_START_S, _STEPS_S = 20.0, 60.0
"""Off a terminal it is told this often how far a start or a bar is, and how far the steps are."""
_QUOTED = 100


@contextmanager
def open_run_view(run_dir: Path, *, live: bool, quiet: bool) -> Iterator[Callable[[RunState], None]]:
    """Yield a function to be given the run's state again and again; what it shows is gone when the block ends.

    A `live` terminal that cannot move its cursor gets lines.
    """
    if quiet:
        yield lambda state: None
    elif live and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        with _LiveView(run_dir, Console(stderr=True, highlight=False, markup=False, emoji=False)) as view:
            yield view.show
    else:
        yield _Lines(run_dir).show


class _Lines:
    """Off a terminal: a line for every change of a stage or of one of its services, and now and then how far it is."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._seen: dict[str, str] = {}
        self._told_s = clock()

    def show(self, state: RunState) -> None:
        for stage in state.stages:
            name = stage.name
            self._change(stage.name, stage.state, name)
            for service in stage.services:
                shown = _("{stage}: service {service}").format(stage=name, service=service.name)
                self._change(f"{stage.name}/{service.name}", service.state, shown)
        if self._clock() - self._told_s >= _START_S:
            self._tell_far(state)

    def _change(self, key: str, now: str, shown: str) -> None:
        if self._seen.get(key, "waiting") != now:
            self._line(translate(join(": ", (shown, _(now)))))
        self._seen[key] = now

    def _tell_far(self, state: RunState) -> None:
        facts = read_run_snapshot(self._run_dir, state)
        if facts.activity:
            far = format_activity(facts.activity, time.time(), show_bar=False)
        else:
            far = _speed_text(facts) if self._clock() - self._told_s >= _STEPS_S else ""
        if facts.stage and far:
            self._line(translate(join(": ", (facts.stage.name, far))), facts.last_log_line if facts.activity else "")

    def _line(self, text: str, quoted: str = "") -> None:
        """Say something, and what a log says, which is nobody's to translate."""
        cut = f"{quoted[:_QUOTED]}…" if len(quoted) > _QUOTED else quoted
        behind = f" | {cut}" if cut else ""
        sys.stderr.write(f"{datetime.now(timezone.utc):%H:%M:%S} {sanitize_for_terminal(text + behind)}\n")
        sys.stderr.flush()
        self._told_s = self._clock()


class _LiveView:
    """A region of lines at the end of the terminal; what stood above stays, and nothing of the region at the end."""

    def __init__(self, run_dir: Path, console: Console) -> None:
        self._run_dir, self._console = run_dir, console
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._shown: tuple[RunState, tuple[int, int]] | None = None
        self._looked = -_LOOK_S

    def __enter__(self) -> _LiveView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, state: RunState) -> None:
        columns, rows = self._console.size
        shown = state, (columns, rows)
        if shown == self._shown and time.monotonic() - self._looked < _LOOK_S:
            return
        self._shown, self._looked = shown, time.monotonic()
        snapshot = read_run_snapshot(self._run_dir, state)
        # one row is left for the cursor
        lines = render_run_frame(snapshot, time.time(), width=max(1, columns - 1), height=max(1, rows - 1))
        self._live.update(Group(*lines), refresh=True)


def format_stage_table_and_notes(state: RunState) -> str:
    width, now_s = max((len(stage.name) for stage in state.stages), default=0), time.time()
    rows = []
    for stage in state.stages:
        took, gates = _stage_time(stage, now_s), translate(_format_gate_count(stage))
        rows.append(f"{stage.name.ljust(width)}  {_padded_state(stage)}  {took:>12}  {gates}")
    notes = (translate(_("note: {note}").format(note=_(note))) for note in state.notes)
    return "\n".join([*(row.rstrip() for row in rows), *notes])
