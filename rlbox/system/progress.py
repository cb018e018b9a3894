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
    """One thing: `mark` is empty until it ended, `status_text` is what its line then says of it, `done_bytes` and
    `total_bytes` bytes.
    """

    key: object
    title: str
    mark: str = ""
    status_text: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


@contextmanager
def show_progress(app: App, *, in_bytes: bool = True, total_bytes: int = 0) -> Iterator[Callable[[ProgressItem], None]]:
    """Yield a function to be told of every change of a thing.

    Parameters
    ----------
    in_bytes
        Whether things have a size; else it is their seconds that count.
    total_bytes
        The bytes of all of them, for a bar of their own above those that are on their way; 0: none, and all stay.
    """
    if app.verbosity < 0:
        yield lambda row: None
    elif app.can_show_progress:
        with _bars(in_bytes=in_bytes) as bars:
            yield _Live(bars, total_bytes, "all files").show
    else:
        yield _printer()


@contextmanager
def show_byte_progress(app: App, title: str, total_bytes: int) -> Iterator[AdvanceBytes]:
    """Yield a function to be told of bytes as they pass; it shows a bar on a terminal, nothing elsewhere."""
    if not app.can_show_progress:
        yield lambda count: None
        return
    with _bars(in_bytes=True) as bars:
        task = bars.add_task(title, total=total_bytes, mark="")
        yield lambda count: bars.advance(task, count)


def _printer() -> Callable[[ProgressItem], None]:
    told: set[tuple[object, str]] = set()

    def show(row: ProgressItem) -> None:
        if row.mark and (row.key, row.mark) not in told:
            told.add((row.key, row.mark))
            sys.stderr.write(
                f"{row.mark} {remove_controls(row.title)}  {remove_controls(row.status_text)}".rstrip() + "\n"
            )
            sys.stderr.flush()

    return show


def _bars(*, in_bytes: bool) -> Progress:
    from rich import progress as of
    from rich.console import Console

    title = of.TextColumn("{task.description:<44.100}", markup=False)
    amounts = (of.BarColumn(20), of.DownloadColumn(), of.TransferSpeedColumn(), of.TimeRemainingColumn())
    told = amounts if in_bytes else (of.TextColumn("{task.elapsed:.1f} s"),)
    return of.Progress(of.TextColumn("{task.fields[mark]}"), title, *told, console=Console(stderr=True))


class _Live:
    """The bars of things, of which the oldest make room where the terminal is full."""

    def __init__(self, bars: Progress, whole: int, title: str) -> None:
        self._bars = bars
        self._all = bars.add_task(title, total=whole, mark="") if whole else None
        self._tasks: dict[object, TaskID] = {}
        self._done: dict[object, int] = {}

    def show(self, row: ProgressItem) -> None:
        bars = self._bars
        if self._all is not None:
            bars.advance(self._all, row.done_bytes - self._done.get(row.key, 0))
            self._done[row.key] = row.done_bytes
        if row.key not in self._tasks:
            self._tasks[row.key] = bars.add_task(remove_controls(row.title), total=row.total_bytes or None, mark="")
        sign, style = _STYLES[row.mark]
        task = self._tasks[row.key]
        bars.update(task, description=remove_controls(row.title), completed=row.done_bytes, mark=f"[{style}]{sign}[/]")
        if row.total_bytes:
            bars.update(task, total=row.total_bytes)
        if row.mark:
            bars.stop_task(task)
        if row.mark and self._all is not None:
            bars.remove_task(self._tasks.pop(row.key))
        while len(self._tasks) > max(bars.console.height - 4, 1):
            bars.remove_task(self._tasks.pop(next(iter(self._tasks))))
