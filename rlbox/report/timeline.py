"""When stages, their phases and services went on: bars for a report, from a run's state and its events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import moment
from rlbox.record.state import RunState, ServiceState, StageState

_ENDS = ("passed", "failed", "interrupted", "not started", "skipped")
_SERVICE_ENDS = ("ended", "stopped")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A span of time, seconds since 1970; `kind` is a stage's or service's state, or `phase`."""

    begin: float
    end: float
    kind: str
    label: str
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One stage or one of its services; `phases` lie within the bars of a stage."""

    name: str
    service: bool
    state: str
    bars: tuple[Bar, ...] = ()
    phases: tuple[Bar, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it went on, all attempts together."""
        return sum(bar.end - bar.begin for bar in self.bars)


def make_timeline(state: RunState, events: Sequence[Mapping[str, Any]], now: float) -> list[TimelineRow]:
    """Return a row for each stage, and below it one for each of its services; what goes on ends at `now`."""
    by_stage: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        by_stage.setdefault(str(event.get("stage", "")), []).append(event)
    rows = []
    for stage in state.stages:
        own = by_stage.get(stage.name, [])
        rows.append(_stage_row(stage, own, now))
        rows += [_service_row(stage, service, own, now) for service in stage.services]
    return rows


def time_range(rows: Sequence[TimelineRow], began: float | None, ended: float | None) -> tuple[float, float]:
    """Return the beginning and the end of all bars, and of the run itself where it is known; at least a second."""
    bars = [bar for row in rows for bar in row.bars]
    low = min([*(bar.begin for bar in bars), *([began] if began is not None else [])], default=0.0)
    high = max([*(bar.end for bar in bars), *([ended] if ended is not None else [])], default=low)
    return low, max(high, low + 1.0)


def _stage_row(stage: StageState, events: Sequence[Mapping[str, Any]], now: float) -> TimelineRow:
    spans = _spans([e for e in events if e.get("event") == "stage"], _ENDS, now)
    if not spans and (began := moment(stage.started_at)) is not None:
        spans = [(began, moment(stage.ended_at) or now, stage.state)]
    bars = _bars(spans, stage.name, stage.state)
    return TimelineRow(
        name=stage.name,
        service=False,
        state=stage.state,
        bars=bars,
        phases=_phases([e for e in events if e.get("event") == "phase"], bars),
    )


def _service_row(
    stage: StageState, service: ServiceState, events: Sequence[Mapping[str, Any]], now: float
) -> TimelineRow:
    own = [e for e in events if e.get("event") == "service" and e.get("service") == service.name]
    ends = [at for e in events if e.get("event") == "stage" and e.get("state") in _ENDS and (at := _at(e)) is not None]
    spans = [
        (begin, min([end, *(at for at in ends if at > begin)]), kind)
        for begin, end, kind in _spans(own, _SERVICE_ENDS, now)
    ]
    if not spans and (began := moment(service.started_at)) is not None:
        spans = [(began, moment(stage.ended_at) or now, service.state)]
    ready = [at for e in own if e.get("state") == "ready" and (at := _at(e)) is not None]
    return TimelineRow(
        name=service.name,
        service=True,
        state=service.state,
        bars=_bars(spans, service.name, service.state),
        phases=tuple(Bar(begin=at, end=at, kind="ready", label="ready") for at in ready),
    )


def _spans(events: Sequence[Mapping[str, Any]], ends: tuple[str, ...], now: float) -> list[tuple[float, float, str]]:
    found: list[tuple[float, float, str]] = []
    began: float | None = None
    last = ""
    for event in events:
        at, state = _at(event), str(event.get("state", ""))
        if at is None:
            continue
        if state == "starting":
            if began is not None:  # the attempt before was broken off without a word
                found.append((began, at, "interrupted"))
            began = at
        elif state in ends and began is not None:
            found.append((began, max(at, began), state))
            began = None
        last = state
    if began is not None:
        found.append((began, max(now, began), last))
    return found


def _bars(spans: Sequence[tuple[float, float, str]], label: str, state: str) -> tuple[Bar, ...]:
    kinds = [kind for _, _, kind in spans[:-1]] + [state] if spans else []
    return tuple(
        Bar(begin=begin, end=max(end, begin), kind=kind, label=label, attempt=number)
        for number, ((begin, end, _), kind) in enumerate(zip(spans, kinds, strict=True), start=1)
    )


def _phases(events: Sequence[Mapping[str, Any]], bars: Sequence[Bar]) -> tuple[Bar, ...]:
    begun = [(at, str(e.get("phase", ""))) for e in events if (at := _at(e)) is not None]
    found: list[Bar] = []
    for bar in bars:
        own = [(at, name) for at, name in begun if bar.begin <= at <= bar.end]
        for number, (at, name) in enumerate(own):
            end = own[number + 1][0] if number + 1 < len(own) else bar.end
            if name and found and found[-1].label == name and found[-1].end == at:
                found[-1] = Bar(begin=found[-1].begin, end=end, kind="phase", label=name, attempt=bar.attempt)
            elif name:
                found.append(Bar(begin=at, end=end, kind="phase", label=name, attempt=bar.attempt))
    return tuple(found)


def _at(event: Mapping[str, Any]) -> float | None:
    return moment(str(event.get("t", "")))
