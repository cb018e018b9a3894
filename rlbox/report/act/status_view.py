"""Where a run is, in a line or two below its logs while they are followed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.errors import SpecError
from rlbox.record.act.state import load_run_state
from rlbox.report.act.painter import Painter, can_paint
from rlbox.report.act.run_frame import status_lines
from rlbox.report.act.tails import RunFacts, RunWatch

if TYPE_CHECKING:
    from rich.text import Text

_LOOK_S = 1.0


@contextmanager
def status_view(run_dir: Path, *, live: bool, quiet: bool) -> Iterator[StatusView]:
    """Yield the status of a run that is followed; on a terminal (`live`) nothing of it is left when the block ends.

    Elsewhere it is a line on standard error for every change of stage, phase or gate.
    """
    view = StatusView(run_dir, Painter() if live and can_paint() else None, quiet=quiet)
    try:
        yield view
    finally:
        view.hide()


class StatusView:
    """`hide` before anything is printed, `show` after it."""

    def __init__(self, run_dir: Path, painter: Painter | None, *, quiet: bool) -> None:
        self._run_dir = run_dir
        self._watch = RunWatch(run_dir)
        self._painter = painter
        self._quiet = quiet
        self._told: object = None
        self._lines: list[Text] = []
        self._looked = -_LOOK_S

    def hide(self) -> None:
        """Take the status away from the terminal."""
        if self._painter:
            self._painter.clear()

    def show(self, *, after_line: bool) -> None:
        """Show the status; not `after_line`, when the cursor stands behind an unfinished line, nothing is shown."""
        if self._quiet or (self._painter and not after_line):
            return
        if time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            self._look()
        if self._painter:
            self._painter.paint(self._lines)

    def _look(self) -> None:
        try:
            facts = self._watch.look(load_run_state(self._run_dir))
        except SpecError:
            return
        if self._painter is None:
            self._tell(facts)
            return
        width, height = self._painter.size
        lines = status_lines(facts, time.time(), width)
        self._lines = lines if len(lines) < height else []

    def _tell(self, facts: RunFacts) -> None:
        stage = facts.stage
        now = (stage.name, stage.state, stage.phase, sum(r.state == "held" for r in stage.gate)) if stage else None
        if now in (None, self._told):
            return
        self._told = now
        for line in status_lines(facts, time.time(), 10_000):
            sys.stderr.write(f"-- {line.plain.strip('─ ')}\n")
        sys.stderr.flush()
