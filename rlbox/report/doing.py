"""What a stage is busy with besides its steps: a start, weights that load, a bar that its log shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlbox.amounts import duration_text, moment, size_text
from rlbox.logs.progress import ProgressBar
from rlbox.record.resources import Sample
from rlbox.record.state import ServiceState, StageState

_CELLS = 16
_LEAST_WEIGHTS = 50_000_000
"""Bytes from which on weights are most of what a start reads; below, imports are."""
_RATE_S = 30.0
_COMPUTES_PCT = 10


@dataclass(frozen=True, kw_only=True)
class Doing:
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


def find_doing(stage: StageState, samples: Sequence[Sample], bars: Mapping[str, ProgressBar | None]) -> Doing | None:
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
    return Doing(share=bar.share, left_s=bar.left_s, label=bar.label) if bar else None


def _start(service: ServiceState, samples: Sequence[Sample], bar: ProgressBar | None) -> Doing:
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
    return Doing(
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


def doing_text(doing: Doing, now_s: float, *, bar: bool) -> str:
    """Return what goes on in one line; not as a `bar`, the number alone is told."""
    since = f", {duration_text(now_s - doing.since_s)}" if doing.since_s is not None else ""
    far = [] if doing.share is None else [bar_text(doing.share) if bar else f"{100 * doing.share:.0f} %"]
    left = [] if doing.left_s is None else [f"{duration_text(doing.left_s)} left"]
    parts = [f"{doing.service} starts{since}" if doing.service else "", *far, *left, *doing.facts]
    return " · ".join(part for part in (*parts, doing.label) if part)
