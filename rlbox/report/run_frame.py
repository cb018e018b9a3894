"""The live view of a run as lines that fit a terminal of any size."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from rlbox.amounts import card_text, duration_text, fine_text, moment, padded, size_text
from rlbox.gate.rules import AT_END
from rlbox.logs.progress import eta_s, main_metrics
from rlbox.record.resources import Sample
from rlbox.record.state import StageState
from rlbox.report.doing import doing_text
from rlbox.report.tails import RunFacts

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


def run_frame(facts: RunFacts, now_s: float, *, width: int, height: int) -> list[Text]:
    """Return the lines of the view, at most `height`, none longer than `width` cells.

    What is told of the stage that goes on comes first when there is little room; then the stages around it.

    Parameters
    ----------
    now_s
        The time, seconds since 1970.
    """
    details = [_detail(label, text) for label, text in _details(facts, now_s) if text]
    room = max(1, height - 1 - len(details))
    lines = [_head(facts, now_s), *_stages(facts, now_s, room), *details][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def status_lines(facts: RunFacts, now_s: float, width: int) -> list[Text]:
    """Return where the stage that goes on is, and what it does and uses, in two lines of `width` cells at most."""
    stage, sample = facts.stage, facts.sample
    if stage is None:
        return []
    name = stage.name
    where = [
        f"{name} {stage.state.upper()}",
        _phase(facts),
        stage_time(stage, now_s),
        gate_count(stage),
    ]
    waits = _waits(stage)
    metrics = [f"{name} {value:.4g}" for name, value in main_metrics(facts.progress.metrics, 2).items()]
    used = (
        [_use(sample), *([f"gpu {_gpus(sample)}"] if sample.gpus else []), f"disk {_disk(facts, sample)}"]
        if sample
        else []
    )
    doing = doing_text(facts.doing, now_s, bar=False) if facts.doing else ""
    rows = ([*where, waits and f"waits {waits}"], [doing, speed_text(facts), *metrics, *used])
    lines = [Text("── " + " · ".join(part for part in row if part), style="dim") for row in rows if any(row)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _head(facts: RunFacts, now_s: float) -> Text:
    state = facts.state
    began = moment(state.started_at)
    parts = [
        f"run {state.run_id}",
        state.target,
        state.profile and f"profile {state.profile}",
    ]
    parts += [f"attempt {state.attempt}" if state.attempt > 1 else "", duration_text(now_s - began) if began else ""]
    return Text(" · ".join(part for part in parts if part), style="bold")


def _stages(facts: RunFacts, now_s: float, room: int) -> Iterable[Text]:
    """Return a line for each stage, or for those around the one that goes on when there is not enough room."""
    stages = facts.state.stages
    at = next((i for i, stage in enumerate(stages) if stage is facts.stage), _last_begun(stages))
    if len(stages) <= room:
        first, last = 0, len(stages)
    else:
        shown = max(1, room - 2) if room > 2 else 1
        first = max(0, min(at - shown // 2, len(stages) - shown))
        last = first + shown
    width = min(_NAME_WIDTH, max((len(stage.name) for stage in stages), default=0))
    if first and room > 2:
        yield Text(f"  {first} stages before: {_counts(stages[:first])}", style="dim")
    for stage in stages[first:last]:
        yield _stage(stage, width, now_s)
    if last < len(stages) and room > 2:
        yield Text(f"  {len(stages) - last} stages after: {_counts(stages[last:])}", style="dim")


def _stage(stage: StageState, width: int, now_s: float) -> Text:
    name = stage.name if len(stage.name) <= width else stage.name[: width - 1] + "…"
    begun = stage.state not in ("waiting", "not started", "skipped")
    text = Text(f"  {padded(name, width)}  ")
    text.append(f"{stage.state.upper():<11}", style=STYLES.get(stage.state, ""))
    text.append(f" {stage_time(stage, now_s):>12}  " if begun else "")
    text.append(gate_count(stage) if begun else "")
    if stage.state in ("starting", "running"):
        text.append("".join(f"  {service.name}:{service.state}" for service in stage.services))
    return text


def _details(facts: RunFacts, now_s: float) -> Iterable[tuple[str, str]]:
    stage, sample = facts.stage, facts.sample
    if stage:
        yield "phase", _phase(facts)
        yield "doing", doing_text(facts.doing, now_s, bar=True) if facts.doing else ""
        yield "waits", _waits(stage)
        yield "speed", speed_text(facts)
        yield (
            "metrics",
            " · ".join(f"{name} {value:.4g}" for name, value in main_metrics(facts.progress.metrics).items()),
        )
    if sample:
        yield "use", _use(sample)
        yield "machine", pressure_text(sample)
        yield "gpu", _gpus(sample)
        yield "disk", _disk(facts, sample)
    yield "log", facts.line


def _phase(facts: RunFacts) -> str:
    stage, sample = facts.stage, facts.sample
    if stage is None:
        return ""
    return stage.phase or (sample.phase if sample and sample.stage == stage.name else "")


def _waits(stage: StageState) -> str:
    broken = [f"{rule.named} BROKEN" for rule in stage.gate if rule.state == "broken"]
    waiting = [rule for rule in stage.gate if rule.state == "waiting" and rule.kind not in AT_END]
    shown = [rule.named + (f" ({rule.count} so far)" if rule.count else "") for rule in waiting]
    more = len(shown) - _WAITS_SHOWN
    return " · ".join([*broken, *shown[:_WAITS_SHOWN], *([f"{more} more"] if more > 0 else [])])


def speed_text(facts: RunFacts) -> str:
    """Return how fast the stage that goes on is, at which step, and how long it will take; empty where nobody tells."""
    reading = facts.progress
    parts = [f"{value:.4g} {unit}" for unit, value in sorted(reading.rates.items()) if unit != "steps/s"]
    if rate := reading.rates.get("steps/s"):
        parts.append(f"{rate:.3g} steps/s" if rate >= 1 else f"{fine_text(1 / rate)} a step")
    if reading.step is not None:
        parts.insert(0, f"step {reading.step}" + (f" of {reading.total}" if reading.total else ""))
    left = eta_s(reading)
    return " · ".join([*parts, *([f"{duration_text(left)} left"] if left is not None else [])])


def _use(sample: Sample) -> str:
    cpu = f"cpu {sample.cpu_pct:.0f} %"
    if sample.share_pct < _SLOWED_PCT:
        cpu += f", {sample.share_pct:.0f} % of what it could use: others have {sample.others_pct / 100:.1f} cores"
    if (sample.held_pct or 0) >= _HELD_PCT:
        cpu += f", the container's own CPU limit holds it back {sample.held_pct:.0f} % of the time"
    parts = [cpu, f"memory {size_text(sample.resident_bytes)}"]
    rates = (("read", sample.read_bps), ("write", sample.write_bps), ("net in", sample.received_bps))
    return " · ".join([*parts, *(f"{name} {size_text(value)}/s" for name, value in rates if value >= 1000)])


def waits_of(sample: Sample) -> tuple[float | None, float | None, float | None]:
    """Return in how much of the last ten seconds some process waited for a core, a disk, memory, percent."""
    return sample.waits_cpu_pct, sample.waits_io_pct, sample.waits_memory_pct


def pressure_text(sample: Sample) -> str:
    """Return the load of the machine, and what its processes waited for in the last ten seconds, where it is told."""
    core, disk, memory = (round(value or 0) for value in waits_of(sample))
    told = ((core, f"a core {core} %"), (disk, f"a disk {disk} %"), (memory, f"memory {memory} %"))
    waits = ", ".join(text for value, text in told if value)
    load = "" if sample.load is None else f"load {sample.load:.1f}"
    return " · ".join(part for part in (load, waits and f"processes wait for {waits}") if part)


def _gpus(sample: Sample) -> str:
    gpus = sample.gpus
    if len(gpus) > _GPUS_SHOWN:
        loads = sorted(gpu.utilization for gpu in gpus)
        power, memory = sum(gpu.power_w for gpu in gpus), sum(gpu.memory_bytes for gpu in gpus)
        return f"{len(gpus)}: {loads[0]:.0f} to {loads[-1]:.0f} % · {power:.0f} W · {card_text(memory)} in all"
    return " · ".join(f"{g.index}: {g.utilization:.0f} % {g.power_w:.0f} W {card_text(g.memory_bytes)}" for g in gpus)


def _disk(facts: RunFacts, sample: Sample) -> str:
    left = f"{size_text(sample.disk_free_bytes)} left"
    return left if facts.full_in_s is None else f"{left}, full in {duration_text(facts.full_in_s)} at the present rate"


def _detail(label: str, text: str) -> Text:
    style = "red" if label == "waits" and "BROKEN" in text else "dim" if label == "log" else ""
    return Text.assemble((f"{label:<{_LABEL_WIDTH}}", "dim"), (text, style))


def _counts(stages: tuple[StageState, ...]) -> str:
    found: dict[str, int] = {}
    for stage in stages:
        found[stage.state] = found.get(stage.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in found.items())


def _last_begun(stages: tuple[StageState, ...]) -> int:
    return max((i for i, stage in enumerate(stages) if stage.started_at), default=0)


def gate_count(stage: StageState) -> str:
    """Return how many rules of the stage's gate hold, and whether one is broken."""
    held = sum(rule.state == "held" for rule in stage.gate)
    broken = sum(rule.state == "broken" for rule in stage.gate)
    return f"{held}/{len(stage.gate)} held" + (f", {broken} broken" if broken else "")


def stage_time(stage: StageState, now_s: float) -> str:
    """Return how long the stage took, or has been going on; empty when it never began."""
    began, ended = moment(stage.started_at), moment(stage.ended_at)
    if began is None:
        return ""
    return duration_text(stage.seconds or (ended or now_s) - began)
