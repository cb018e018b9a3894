"""How wheels that are compiled are told of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import columns, duration_text, size_text
from rlbox.target.lock import Compiled, Package


@dataclass(frozen=True, kw_only=True)
class WheelTold:
    """What became of one wheel.

    Attributes
    ----------
    state
        `in the store`, `compiled`, `the same twice`, or in a dry run `to compile`.
    wheel
        None before it was compiled.
    seconds
        How long it took; of a dry run how long it will take, as one of that name did here; 0: that is not known.
    kept
        Object files that are there from before.
    jobs
        Compilers at a time.
    """

    compiled: Compiled
    state: str
    archs: tuple[str, ...]
    wheel: Package | None = None
    seconds: float = 0.0
    kept: int = 0
    jobs: int = 0


def expected_s(units: Iterable[int], jobs_now: int, kept: int) -> float:
    """Return how many seconds a build takes, by those that its files took before; 0 where nothing is known.

    Parameters
    ----------
    units
        Seconds of each file; 0 for one that was not compiled then.
    kept
        Object files that are there.
    """
    every = list(units)
    made = [seconds for seconds in every if seconds]
    if not made:
        return 0.0
    return max(len(every) - kept, 0) * (sum(made) / len(made)) / jobs_now


def compile_json(target: str, told: Sequence[WheelTold]) -> dict[str, Any]:
    """Return them as JSON types."""
    rows = [
        {
            "name": one.compiled.name,
            "recipe": one.compiled.recipe,
            "archs": list(one.archs),
            "state": one.state,
            "file": one.wheel.file if one.wheel else "",
            "sha256": one.wheel.sha256 if one.wheel else "",
            "size": one.wheel.size if one.wheel else 0,
            "seconds": round(one.seconds, 1),
            "kept": one.kept,
            "jobs": one.jobs,
        }
        for one in told
    ]
    return {"target": target, "wheels": rows}


def compile_text(told: Sequence[WheelTold]) -> str:
    """Return a line for each: what decides it, what it is for, how it stands."""
    return "\n".join(columns([_row(one) for one in told]))


def _row(one: WheelTold) -> tuple[str, ...]:
    head = (one.compiled.name, f"recipe {one.compiled.recipe[:12]}", ", ".join(one.archs) or "no GPU", one.state)
    if one.wheel:
        return (*head, f"sha256 {one.wheel.sha256[:12]}  {size_text(one.wheel.size)}")
    if one.seconds:
        return (*head, f"{one.kept} objects kept, {one.jobs} at a time, about {duration_text(one.seconds)}")
    return (*head, f"{one.kept} objects kept, {one.jobs} at a time, how long is not known before the first")
