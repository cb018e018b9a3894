"""The phases of a stage, as a run's plan carries them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlbox.job.phase import Phase


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """A phase with its placeholders filled in; `progress` maps activities to what they must reach to count."""

    name: str
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    silence_s: float
    progress: Mapping[str, float] = field(default_factory=dict)
    remedy: str = ""


def plan_phases(phases: Sequence[Phase], fill: Callable[[str], str]) -> tuple[PhasePlan, ...]:
    """Return the phases of a stage; `fill` replaces the placeholders of a pattern."""
    return tuple(
        PhasePlan(
            name=phase.name,
            begins=tuple(fill(text) for text in phase.begins),
            ends=tuple(fill(text) for text in phase.ends),
            silence_s=phase.silence_s,
            progress=dict(phase.progress),
            remedy=phase.remedy,
        )
        for phase in phases
    )
