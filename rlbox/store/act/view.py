"""Files on their way into the store: bars on a terminal, a line for each file elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlbox.amounts import size_text
from rlbox.store.act.fetch import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_MARKS = {"done": "✓", "failed": "✗"}


@contextmanager
def fetch_view(total: int, *, live: bool, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a function to be told of every progress; `total` is the bytes that are missing."""
    if quiet:
        yield lambda progress: None
    elif live:
        with _live_view(total) as show:
            yield show
    else:
        yield _print_end


def _print_end(progress: Progress) -> None:
    if mark := _MARKS.get(progress.state):
        sys.stderr.write(
            f"{mark} {_title(progress)}  {size_text(progress.artifact.size)}  {progress.mirror}".rstrip() + "\n"
        )
        sys.stderr.flush()


def _title(progress: Progress) -> str:
    return progress.artifact.file.rpartition("/")[2]


@contextmanager
def _live_view(total: int) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:<44.44}", markup=False), BarColumn(20), DownloadColumn())
    with Bars(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bars:
        yield _Live(bars, bars.add_task("all files", total=total)).show


class _Live:
    """One bar for all files, one for each that is on its way."""

    def __init__(self, bars: Bars, overall: TaskID) -> None:
        self._bars, self._overall = bars, overall
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}

    def show(self, progress: Progress) -> None:
        """Move the bars."""
        key = progress.artifact.sha256
        ended = progress.state in _MARKS
        done = progress.artifact.size if progress.state == "done" else progress.done
        self._bars.update(self._overall, advance=done - self._done.get(key, 0))
        self._done[key] = done
        if key not in self._tasks and not ended:
            self._tasks[key] = self._bars.add_task(_title(progress), total=progress.artifact.size)
        if ended and key in self._tasks:
            self._bars.remove_task(self._tasks.pop(key))
        elif not ended:
            note = " (another rlbox has it)" if progress.state == "waiting" else ""
            self._bars.update(self._tasks[key], completed=done, description=_title(progress) + note)
