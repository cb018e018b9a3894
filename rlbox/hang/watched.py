"""What the watch over hangs asks of the stage that it watches, and what it tells of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.job.plan import StagePlan


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One stage, as whoever carries it out hands it to the watch; `folder` is for its evidence, and may not be there.

    `members()` are the living processes of the run, pid to name as the kernel shows it; `event(kind, **what)` notes
    what happened, `enter(phase)` records the phase. `hide` masks the secrets in JSON types, a text among them.
    `going_on()` is False once somebody waits for the end of the run.
    """

    stage: StagePlan
    folder: Path
    members: Callable[[], Mapping[int, str]]
    event: Callable[..., None]
    enter: Callable[[str], None]
    hide: Callable[[Any], Any]
    going_on: Callable[[], bool]
