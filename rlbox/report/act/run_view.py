"""A run as a person sees it: live on a terminal, a line for every change elsewhere, and the table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.record.act.state import RunState
from rlbox.report.act.painter import can_paint
from rlbox.report.act.run_frame import gate_count, run_frame, stage_time

if TYPE_CHECKING:
    from rlbox.report.act.painter import Painter

_LOOK_S = 1.0
"""Files beside the state are looked at this often at most."""


@contextmanager
def run_view(run_dir: Path, *, live: bool, quiet: bool) -> Iterator[Callable[[RunState], None]]:
    """Yield a function to be given the run's state again and again; what it shows is gone when the block ends.

    Parameters
    ----------
    live
        Whether standard error is a terminal that a person looks at. One that cannot move its cursor gets lines.
    """
    if quiet:
        yield lambda state: None
    elif live and can_paint():
        with _live_view(run_dir) as show:
            yield show
    else:
        yield _Lines().show


class _Lines:
    """Off a terminal: a line for every change of a stage or of one of its services."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def show(self, state: RunState) -> None:
        for stage in state.stages:
            self._line(stage.name, stage.state, stage.name)
            for service in stage.services:
                self._line(f"{stage.name}/{service.name}", service.state, f"{stage.name}: service {service.name}")

    def _line(self, key: str, now: str, shown: str) -> None:
        if self._seen.get(key, "waiting") != now:
            sys.stderr.write(f"{datetime.now(timezone.utc):%H:%M:%S} {shown}: {now}\n")
            sys.stderr.flush()
        self._seen[key] = now


@contextmanager
def _live_view(run_dir: Path) -> Iterator[Callable[[RunState], None]]:
    from rlbox.report.act.painter import Painter

    painter = Painter()
    try:
        yield _Live(run_dir, painter).show
    finally:
        painter.clear()


class _Live:
    def __init__(self, run_dir: Path, painter: Painter) -> None:
        from rlbox.report.act.tails import RunWatch

        self._watch = RunWatch(run_dir)
        self._painter = painter
        self._state: RunState | None = None
        self._size = (0, 0)
        self._looked = -_LOOK_S

    def show(self, state: RunState) -> None:
        size = self._painter.size
        if state == self._state and size == self._size and time.monotonic() - self._looked < _LOOK_S:
            return
        self._state, self._size, self._looked = state, size, time.monotonic()
        self._painter.paint(run_frame(self._watch.look(state), time.time(), width=size[0], height=size[1]))


def summary_text(state: RunState) -> str:
    """Return the end of a run as text without colour: a table, and what must be known of a resumed run."""
    width = max(len(stage.name) for stage in state.stages)
    rows = [
        f"{stage.name:<{width}}  {stage.state.upper():<11}  {stage_time(stage, time.time()):>12}  {gate_count(stage)}"
        for stage in state.stages
    ]
    return "\n".join([*(row.rstrip() for row in rows), *(f"note: {note}" for note in state.notes)])
