"""The runs of a data disk that failed with a line which no signature knew, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlbox.amounts import moment
from rlbox.diagnose.learn.unknowns import UnknownFailure
from rlbox.errors import RlboxError
from rlbox.files.act.rows import read_rows
from rlbox.record.act.folder import load_plan
from rlbox.record.act.ledger import Ledger
from rlbox.record.act.state import RunState, run_cause
from rlbox.record.resources import RESOURCES_FILE, read_sample

_BYTES = 1 << 20
"""Of the samples of a run: its last ones say how many GPUs it had."""


def unknown_runs(ledger: Ledger, words: tuple[str, ...] = ()) -> Iterator[UnknownFailure]:
    """Yield the failed runs whose cause quotes a line that was unknown; `words` are options that name their disk."""
    for folder in ledger.runs():
        try:
            state = ledger.state(folder, load_plan(folder))
        except RlboxError:
            continue  # a run of another rlbox, or one whose plan is torn
        cause = run_cause(state) if state and state.state == "failed" else None
        if state and cause and cause.line and not cause.known:
            began = moment(state.started_at) or 0.0
            ended = moment(state.ended_at) or began
            yield UnknownFailure(
                text=cause.line,
                of=(folder.name, *words),
                hours=_hours(state, ended - began),
                gpus=_gpus(folder),
                at=ended,
            )


def _hours(state: RunState, seconds: float) -> float:
    """Return how long a run went: by a clock that cannot be set where its stages have that."""
    return max(sum(stage.seconds for stage in state.stages), seconds, 0.0) / 3600


def _gpus(folder: Path) -> int:
    samples = (read_sample(row) for row in read_rows(folder / RESOURCES_FILE, _BYTES))
    return max((len(sample.gpus) for sample in samples if sample), default=0)
