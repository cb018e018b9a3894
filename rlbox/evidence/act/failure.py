"""A stage that failed, as whoever carried it out hands it to those who explain it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.causes.cause import Cause
from rlbox.causes.first_fatal import FatalSpot
from rlbox.evidence.act.snapshot import Snapshot
from rlbox.job.plan import RunPlan, StagePlan
from rlbox.record.act.state import StageState
from rlbox.secrets.masks import Masks


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A stage that failed, nothing of it being left; `state` is what `run.json` says of it.

    `fatals` has the first fatal line of each log that holds one, by the log's path below the run directory. `snapshot`
    is from the moment at which it failed.
    """

    run_dir: Path
    plan: RunPlan
    stage: StagePlan
    state: StageState
    cause: Cause
    started_at: str
    ended_at: str
    fatals: Mapping[str, FatalSpot]
    snapshot: Snapshot | None
    masks: Masks
