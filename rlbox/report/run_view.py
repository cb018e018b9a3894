"""A run as a person sees it: live on a terminal, a line for every change elsewhere, and the table at the end.

While its logs are followed it is a line or two below them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from rlbox.amounts import padded
from rlbox.errors import SpecError
from rlbox.printable import printable
from rlbox.record.state import RunState, load_run_state
from rlbox.report.doing import doing_text
from rlbox.report.run_frame import gate_count, run_frame, speed_text, stage_time, status_lines
from rlbox.report.tails import RunFacts, RunWatch

_LOOK_S = 1.0
"""Files beside the state are looked at this often at most."""
_START_S, _STEPS_S = 20.0, 60.0
"""Off a terminal it is told this often how far a start or a bar is, and how far the steps are."""
_QUOTED = 100


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
        painter = Painter()
        try:
            yield _Live(run_dir, painter).show
        finally:
            painter.clear()
    else:
        yield _Lines(run_dir).show


class _Lines:
    """Off a terminal: a line for every change of a stage or of one of its services, and now and then how far it is."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._watch, self._clock = RunWatch(run_dir), clock
        self._seen: dict[str, str] = {}
        self._told_s = clock()

    def show(self, state: RunState) -> None:
        for stage in state.stages:
            name = stage.name
            self._change(stage.name, stage.state, name)
            for service in stage.services:
                shown = f"{name}: service {service.name}"
                self._change(f"{stage.name}/{service.name}", service.state, shown)
        if self._clock() - self._told_s >= _START_S:
            self._tell_far(state)

    def _change(self, key: str, now: str, shown: str) -> None:
        if self._seen.get(key, "waiting") != now:
            self._line(f"{shown}: {now}")
        self._seen[key] = now

    def _tell_far(self, state: RunState) -> None:
        """Tell how far it is: what starts or shows a bar soon, steps less often."""
        facts = self._watch.look(state)
        if facts.doing:
            far = doing_text(facts.doing, time.time(), bar=False)
        else:
            far = speed_text(facts) if self._clock() - self._told_s >= _STEPS_S else ""
        if facts.stage and far:
            self._line(f"{facts.stage.name}: {far}", facts.line if facts.doing else "")

    def _line(self, text: str, quoted: str = "") -> None:
        """Say something, and what a log says, which is nobody's to translate."""
        cut = f"{quoted[:_QUOTED]}…" if len(quoted) > _QUOTED else quoted
        behind = f" | {cut}" if cut else ""
        sys.stderr.write(f"{datetime.now(timezone.utc):%H:%M:%S} {printable(text + behind)}\n")
        sys.stderr.flush()
        self._told_s = self._clock()


class _Live:
    def __init__(self, run_dir: Path, painter: Painter) -> None:
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
    width = max((len(stage.name) for stage in state.stages), default=0)
    rows = [
        f"{padded(name, width)}  {stage.state.upper():<11}  {stage_time(stage, time.time()):>12}  {gate_count(stage)}"
        for name, stage in ((stage.name, stage) for stage in state.stages)
    ]
    return "\n".join([*(row.rstrip() for row in rows), *(f"note: {note}" for note in state.notes)])


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
            sys.stderr.write(f"-- {printable(line.plain.strip('─ '))}\n")
        sys.stderr.flush()


def can_paint() -> bool:
    """Return whether the terminal that the environment names can move its cursor."""
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class Painter:
    """A region of lines from the cursor on; what stood above stays, and `clear` leaves nothing of it.

    A frame that is equal to the one before writes nothing. A terminal that is gone is no error: whoever follows the run
    finds out.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._lines: list[Text] = []
        self._width = 0

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows that a frame may have: one row is left for the cursor."""
        width, height = self._console.size
        return max(1, width - 1), max(1, height - 1)

    def paint(self, lines: Sequence[Text]) -> None:
        """Show `lines`, of which none may be wider and which may not be more than `size` says."""
        width = self.size[0]
        lines = [_fit_line(line, width) for line in lines]
        if not lines:
            self.clear()
        elif [*lines] != self._lines or width != self._width:
            with contextlib.suppress(OSError):
                self._live = self._live or self._begin()
                self._back(width)
                self._lines, self._width = [*lines], width
                self._live.update(Group(*lines), refresh=True)

    def clear(self) -> None:
        """Remove the region; the cursor is where it began."""
        if self._live:
            with contextlib.suppress(OSError):
                self._back(self.size[0])
                self._live.stop()
        self._live, self._lines = None, []

    def _begin(self) -> Live:
        live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        live.start()
        return live

    def _back(self, width: int) -> None:
        """Erase the rows that a terminal made more of when it became narrower: rich knows only the lines."""
        if width < self._width:
            more = sum(max(1, -(-line.cell_len // (width + 1))) - 1 for line in self._lines)
            self._console.control(Control(*((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * more))


def _fit_line(line: Text, width: int) -> Text:
    """Return a line without control sequences, its parts in their styles, cut to a width."""
    ends = sorted({0, len(line), *(edge for span in line.spans for edge in (span.start, span.end))})
    parts = [line[begin:end] for begin, end in pairwise(ends)]
    text = Text.assemble(
        *((printable(part.plain), part.spans[0].style if part.spans else "") for part in parts), style=line.style
    )
    text.truncate(width, overflow="ellipsis")
    return text
