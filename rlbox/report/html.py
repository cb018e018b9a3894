"""A run as one HTML file: its timeline, plots, gates, evidence and configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rlbox.amounts import duration_text, zoned_iso_to_unix
from rlbox.config.toml_files import load_toml
from rlbox.logs.progress import LOWEST_RANK, get_metric_rank
from rlbox.record.state import RunState, ServiceState, StageState, find_run_cause
from rlbox.report.metrics import MetricSeries
from rlbox.report.plots import COLOURS, PLOT_BOX, Plot, draw_plot, draw_resource_plots
from rlbox.report.read import RunRecord, dict_or_empty, dicts_in_list, list_or_empty
from rlbox.terminal import sanitize_for_terminal

_ENDS = ("passed", "failed", "interrupted", "not started", "skipped")
_SERVICE_ENDS = ("ended", "stopped")


@dataclass(frozen=True, kw_only=True)
class TimelineBar:
    """A span of time, seconds since 1970; `state_or_phase` is a stage's or service's state, or `phase`."""

    begin_unix_s: float
    end_unix_s: float
    state_or_phase: str
    label: str
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    name: str
    service: bool
    state: str
    bars: Sequence[TimelineBar]
    phases: Sequence[TimelineBar]

    @property
    def total_bar_seconds(self) -> float:
        return sum(bar.end_unix_s - bar.begin_unix_s for bar in self.bars)


def make_timeline_rows(state: RunState, events: Sequence[Mapping[str, Any]], now_unix_s: float) -> list[TimelineRow]:
    """Return a row for each stage, and below it one for each of its services; what goes on ends at `now_unix_s`."""
    rows = []
    for stage in state.stages:
        own = [event for event in events if event.get("stage") == stage.name]
        changes = [event for event in own if event.get("event") == "stage"]
        ended = zoned_iso_to_unix(stage.ended_at) or now_unix_s
        bars = _list_bars(stage, changes, ended, now_unix_s)
        phases = _list_phases([event for event in own if event.get("event") == "phase"], bars)
        rows.append(TimelineRow(name=stage.name, service=False, state=stage.state, bars=bars, phases=phases))
        for service in stage.services:
            # a service ends with its stage at the latest
            changes = [event for event in own if event.get("service") == service.name or event.get("state") in _ENDS]
            bars = _list_bars(service, changes, ended, now_unix_s)
            ready = [at for event in changes if event.get("state") == "ready" and (at := _at(event)) is not None]
            marks = [TimelineBar(begin_unix_s=at, end_unix_s=at, state_or_phase="ready", label="ready") for at in ready]
            rows.append(TimelineRow(name=service.name, service=True, state=service.state, bars=bars, phases=marks))
    return rows


def time_range_of_bars_and_run(
    rows: Sequence[TimelineRow], run_began: float | None, run_ended: float | None
) -> tuple[float, float]:
    """Return the beginning and the end of all bars, and of the run itself where it is known; at least a second."""
    bars = [bar for row in rows for bar in row.bars]
    low = min([*(bar.begin_unix_s for bar in bars), *([run_began] if run_began is not None else [])], default=0.0)
    high = max([*(bar.end_unix_s for bar in bars), *([run_ended] if run_ended is not None else [])], default=low)
    return low, max(high, low + 1.0)


def _list_bars(
    subject: StageState | ServiceState, changes: Sequence[Mapping[str, Any]], ended: float, now: float
) -> list[TimelineBar]:
    """Return a bar for each attempt, the last with the state of the record; without events, one by its times."""
    spans: list[tuple[float, float, str]] = []
    began: float | None = None
    for event in changes:
        at, state = _at(event), str(event.get("state", ""))
        if at is None:
            continue
        if state == "starting":
            if began is not None:  # the attempt before was broken off without a word
                spans.append((began, at, "interrupted"))
            began = at
        elif state in (*_ENDS, *_SERVICE_ENDS) and began is not None:
            spans.append((began, max(at, began), state))
            began = None
    if began is not None:
        spans.append((began, max(now, began), subject.state))
    if not spans and (started := zoned_iso_to_unix(subject.started_at)) is not None:
        spans = [(started, max(ended, started), subject.state)]
    states = [*(state for _, _, state in spans[:-1]), subject.state]
    return [
        TimelineBar(begin_unix_s=begin, end_unix_s=end, state_or_phase=state, label=subject.name, attempt=number)
        for number, ((begin, end, _), state) in enumerate(zip(spans, states, strict=False), start=1)
    ]


def _list_phases(events: Sequence[Mapping[str, Any]], bars: Sequence[TimelineBar]) -> list[TimelineBar]:
    begun = [(at, str(event.get("phase", ""))) for event in events if (at := _at(event)) is not None]
    phases: list[TimelineBar] = []
    for bar in bars:
        own = [(at, name) for at, name in begun if bar.begin_unix_s <= at <= bar.end_unix_s]
        own = [row for number, row in enumerate(own) if not number or row[1] != own[number - 1][1]]
        phases += [
            TimelineBar(begin_unix_s=at, end_unix_s=end, state_or_phase="phase", label=name, attempt=bar.attempt)
            for (at, name), (end, _) in pairwise([*own, (bar.end_unix_s, "")])
            if name
        ]
    return phases


def _at(event: Mapping[str, Any]) -> float | None:
    return zoned_iso_to_unix(str(event.get("t", "")))


MOST_BYTES = 2_000_000
_LABELLED = 0.06
"""Share of the timeline from which on a phase is wide enough for its name."""

_DATA = Path(__file__).parent / "page"
_LEVELS = ((500, 60, 20_000), (200, 12, 1500), (80, 4, 300), (80, 0, 300))
"""Characters of what a rule saw, rules of a stage that held, and rows of the timeline, from all to little."""

MOST_PLOTS = 60
_FIRST_PLOTS = 12
"""Plots that are shown at once; the others are folded away."""


def render_report_html(record: RunRecord, *, made_at: str, live: bool = False) -> str:
    """Return the report of a run as one HTML document under `MOST_BYTES`, if need be with less detail.

    `made_at` is ISO 8601 in UTC, and what goes on ends there. A `live` page asks again where it came from.
    """
    text, template, words = "", load_page_template("report.html.j2"), load_english_page_labels()
    for level in _LEVELS:
        text = template.render(_context(record, made_at, words, level), live=live)
        if len(text.encode("utf-8", "replace")) <= MOST_BYTES:
            break
    return text


def _context(record: RunRecord, made_at: str, words: Mapping[str, Any], level: tuple[int, int, int]) -> dict[str, Any]:
    state, plan = record.state, record.plan
    now = zoned_iso_to_unix(made_at) or 0.0
    drawn, more, not_drawn = _metric_plots(record.metrics)
    seen, rules, rows = level
    return {
        "w": words,
        "box": PLOT_BOX,
        "state": state,
        "cause": find_run_cause(state),
        "made_at": made_at,
        "facts": [(words[name], value) for name, value in _facts(state, plan, now) if value],
        "stages": [_stage(stage, now, seen, rules) for stage in state.stages],
        **_timeline(record, now, rows),
        "metrics": drawn,
        "more_metrics": more,
        "not_drawn": not_drawn,
        "resources": draw_resource_plots(record.samples, words),
        "evidence": record.evidence,
        "params": _params(plan),
        "overrides": json.dumps(record.overrides, indent=1, ensure_ascii=False) if record.overrides else "",
        "notes": [*state.notes, *(str(note) for note in list_or_empty(plan, "notes") if note not in state.notes)],
        "commands": list(_commands(plan)),
        "variables": _variables(record),
        "packages": record.packages,
        "gaps": record.gaps,
    }


def _facts(state: RunState, plan: Mapping[str, Any], now: float) -> Iterable[tuple[str, str]]:
    began, ended = zoned_iso_to_unix(state.started_at), zoned_iso_to_unix(state.ended_at)
    yield "job", state.job
    yield "target", state.target
    yield "place", state.place
    yield "profile", state.profile
    yield "host", str(plan.get("host", ""))
    yield "user", str(plan.get("user", ""))
    yield "took", duration_text((ended or now) - began) if began is not None else ""
    yield "attempt", str(state.attempt) if state.attempt > 1 else ""
    yield "exit_code", "" if state.exit_code is None else str(state.exit_code)


def _stage(stage: StageState, now: float, seen: int, rules: int) -> dict[str, Any]:
    began, ended = zoned_iso_to_unix(stage.started_at), zoned_iso_to_unix(stage.ended_at)
    shown = [rule for rule in stage.gate if rule.state == "broken"]
    shown += [rule for rule in stage.gate if rule.state != "broken"][:rules]
    return {
        **vars(stage),
        "title": stage.title if stage.title != stage.name else "",
        "took": duration_text(stage.seconds or (ended or now) - began) if began is not None else "",
        "held": sum(rule.state == "held" for rule in stage.gate),
        "rules": len(stage.gate),
        "gate": [
            {"kind": r.kind, "rule": r.rule[:500], "state": r.state, "count": r.count, "seen": r.seen[:seen]}
            for r in sorted(shown, key=stage.gate.index)
        ],
        "cause": stage.cause.what if stage.cause else "",
        "open": stage.state in ("failed", "running", "starting", "interrupted"),
    }


def _timeline(record: RunRecord, now: float, most: int) -> dict[str, Any]:
    state = record.state
    rows = make_timeline_rows(state, record.events, now)
    span = time_range_of_bars_and_run(rows, zoned_iso_to_unix(state.started_at), zoned_iso_to_unix(state.ended_at))
    names = list(dict.fromkeys(bar.label for row in rows if not row.service for bar in row.phases))
    colours = {name: number % COLOURS for number, name in enumerate(names)}
    shown = rows if len(rows) <= most else [row for row in rows if not row.service][:most]
    known = any(row.bars for row in rows) or state.started_at
    return {
        "timeline": [_row(row, span, colours) for row in shown],
        "phases": list(colours.items()),
        "span": [_iso(at) if known else "" for at in span],
        "rows_hidden": len(rows) - len(shown),
    }


def _row(row: TimelineRow, span: tuple[float, float], colours: Mapping[str, int]) -> dict[str, Any]:
    return {
        **vars(row),
        "took": duration_text(row.total_bar_seconds) if row.bars else "",
        "bars": [_bar(bar, span, 0) for bar in row.bars],
        "phases": [_bar(bar, span, colours.get(bar.label, 0)) for bar in row.phases],
    }


def _bar(bar: TimelineBar, span: tuple[float, float], colour: int) -> dict[str, Any]:
    whole = span[1] - span[0]
    number = f" ({bar.attempt})" if bar.attempt > 1 else ""
    seconds = bar.end_unix_s - bar.begin_unix_s
    return {
        "kind": bar.state_or_phase,
        "label": bar.label if seconds / whole >= _LABELLED else "",
        "colour": colour,
        "left": f"{100 * (bar.begin_unix_s - span[0]) / whole:.3f}",
        "width": f"{100 * seconds / whole:.3f}",
        "tip": f"{bar.label}{number}: {duration_text(seconds)}, {_utc(_iso(bar.begin_unix_s))}",
    }


def _params(plan: Mapping[str, Any]) -> list[dict[str, str]]:
    origins, units = dict_or_empty(plan, "origins"), dict_or_empty(plan, "units")
    return [
        {"name": name, "value": str(value), "origin": str(origins.get(name, "")), "unit": str(units.get(name, ""))}
        for name, value in sorted(dict_or_empty(plan, "params").items())
    ]


def _commands(plan: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for stage in dicts_in_list(plan, "stages"):
        parts = [(f"# {service.get('name')}", service) for service in dicts_in_list(stage, "services")]
        parts.append(("", stage))
        texts = [f"{shlex.join(map(str, list_or_empty(part, 'argv')))}  {note}".rstrip() for note, part in parts]
        yield {"name": stage.get("name", ""), "commands": texts}


def _variables(record: RunRecord) -> list[str]:
    names = {*dict_or_empty(record.plan, "env"), *map(str, list_or_empty(record.plan, "secrets"))}
    for stage in dicts_in_list(record.plan, "stages"):
        names |= dict_or_empty(stage, "env").keys()
        names |= {name for service in dicts_in_list(stage, "services") for name in dict_or_empty(service, "env")}
    for one in record.evidence:
        names |= dict_or_empty(one.facts, "environment").keys()
    return sorted(names)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


def _utc(iso: str) -> str:
    at = zoned_iso_to_unix(iso)
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if at is not None else iso


def load_english_page_labels() -> dict[str, Any]:
    return load_toml(_DATA / "words.toml")


def load_page_template(name: str, **filters: Callable[..., str]) -> Any:
    environment = Environment(
        loader=FileSystemLoader(_DATA), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(utc=_utc, seconds=zoned_iso_to_unix, remove_controls=sanitize_for_terminal, **filters)
    return environment.get_template(name)


def _metric_plots(metrics: Sequence[MetricSeries]) -> tuple[list[Plot], list[Plot], int]:
    main = [metric for metric in metrics if get_metric_rank(metric.series.name) < LOWEST_RANK or metric.series.unit]
    first, more = main[:_FIRST_PLOTS], [metric for metric in metrics if metric not in main[:_FIRST_PLOTS]]
    hidden = max(0, len(metrics) - MOST_PLOTS)
    return _draw_metrics(first), _draw_metrics(more[: MOST_PLOTS - len(first)]), hidden


def _draw_metrics(metrics: Sequence[MetricSeries]) -> list[Plot]:
    notes = [", ".join(filter(None, (metric.stage, metric.source))) for metric in metrics]
    plots = [draw_plot(m.series.name, [m.series], note=note, x=m.x) for m, note in zip(metrics, notes, strict=True)]
    return [plot for plot in plots if plot]
