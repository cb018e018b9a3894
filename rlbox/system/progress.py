"""Things on their way: bars or marks that move on a terminal, elsewhere a line for each that has ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlbox.terminal import remove_controls

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rlbox.app import App

AdvanceBytes = Callable[[int], None]
_STYLES = {"": ("…", "cyan"), "✓": ("✓", "green"), "=": ("=", "dim"), "✗": ("✗", "red")}


@dataclass(frozen=True, kw_only=True)
class ProgressItem:
    """One thing: `mark` is empty until it ended, `status_text` is what its line then says of it."""

    key: object
    title: str
    mark: str = ""
    status_text: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


@contextmanager
def show_progress(app: App, *, in_bytes: bool = True, total_bytes: int = 0) -> Iterator[Callable[[ProgressItem], None]]:
    """Yield a function to be told of every change of a thing.

    `in_bytes`: Things have a size; else it is their seconds that count.
    `total_bytes`: Of all of them, for a bar of their own above those that are on their way; 0: none, and all stay.
    """
    if app.verbosity < 0:
        yield lambda item: None
    elif app.can_show_progress:
        with _create_bars(in_bytes=in_bytes) as bars:
            yield _BarList(bars, total_bytes).show
    else:
        yield _create_line_printer()


@contextmanager
def show_byte_progress(app: App, title: str, total_bytes: int) -> Iterator[AdvanceBytes]:
    if not app.can_show_progress:
        yield lambda count: None
        return
    with _create_bars(in_bytes=True) as bars:
        task = bars.add_task(title, total=total_bytes, mark="")
        yield lambda count: bars.advance(task, count)


def _create_line_printer() -> Callable[[ProgressItem], None]:
    told: set[tuple[object, str]] = set()

    def show(item: ProgressItem) -> None:
        if item.mark and (item.key, item.mark) not in told:
            told.add((item.key, item.mark))
            line = f"{item.mark} {remove_controls(item.title)}  {remove_controls(item.status_text)}"
            sys.stderr.write(line.rstrip() + "\n")
            sys.stderr.flush()

    return show


def _create_bars(*, in_bytes: bool) -> Progress:
    from rich import progress as of
    from rich.console import Console

    title = of.TextColumn("{task.description:<44.100}", markup=False)
    amounts = (of.BarColumn(20), of.DownloadColumn(), of.TransferSpeedColumn(), of.TimeRemainingColumn())
    columns = amounts if in_bytes else (of.TextColumn("{task.elapsed:.1f} s"),)
    return of.Progress(of.TextColumn("{task.fields[mark]}"), title, *columns, console=Console(stderr=True))


class _BarList:
    """The bars of things, of which the oldest make room where the terminal is full."""

    def __init__(self, bars: Progress, total_bytes: int) -> None:
        self._bars = bars
        self._all = bars.add_task("all files", total=total_bytes, mark="") if total_bytes else None
        self._tasks: dict[object, TaskID] = {}
        self._done: dict[object, int] = {}

    def show(self, item: ProgressItem) -> None:
        bars = self._bars
        if self._all is not None:
            bars.advance(self._all, item.done_bytes - self._done.get(item.key, 0))
            self._done[item.key] = item.done_bytes
        if item.key not in self._tasks:
            self._tasks[item.key] = bars.add_task(remove_controls(item.title), total=item.total_bytes or None, mark="")
        sign, style = _STYLES[item.mark]
        task = self._tasks[item.key]
        bars.update(
            task,
            description=remove_controls(item.title),
            completed=item.done_bytes,
            total=item.total_bytes or None,
            mark=f"[{style}]{sign}[/]",
        )
        if item.mark:
            bars.stop_task(task)
        if item.mark and self._all is not None:
            bars.remove_task(self._tasks.pop(item.key))
        while len(self._tasks) > max(bars.console.height - 4, 1):
            bars.remove_task(self._tasks.pop(next(iter(self._tasks))))
