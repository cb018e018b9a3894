"""Things on their way: a line for each that has ended, and on a terminal bars for the others below."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlbox.terminal import sanitize_for_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rlbox.app import App

AdvanceBytes = Callable[[int], None]


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
    `total_bytes`: Of all of them, for a bar of their own; 0: none.
    """
    if app.verbosity < 0:
        yield lambda item: None
    elif app.can_show_progress:
        with _create_bars(in_bytes=in_bytes) as bars:
            yield _ItemPrinter(bars, total_bytes).show
    else:
        yield _ItemPrinter(None, 0).show


@contextmanager
def show_byte_progress(app: App, title: str, total_bytes: int) -> Iterator[AdvanceBytes]:
    if not app.can_show_progress:
        yield lambda count: None
        return
    with _create_bars(in_bytes=True) as bars:
        task = bars.add_task(title, total=total_bytes)
        yield lambda count: bars.advance(task, count)


def _create_bars(*, in_bytes: bool) -> Progress:
    from rich import progress as of
    from rich.console import Console

    title = of.TextColumn("{task.description:<44.100}", markup=False)
    amounts = (of.BarColumn(20), of.DownloadColumn(), of.TransferSpeedColumn(), of.TimeRemainingColumn())
    columns = amounts if in_bytes else (of.TextColumn("{task.elapsed:.1f} s"),)
    return of.Progress(title, *columns, console=Console(stderr=True))


class _ItemPrinter:
    def __init__(self, bars: Progress | None, total_bytes: int) -> None:
        self._bars = bars
        self._all = bars.add_task("all files", total=total_bytes) if bars and total_bytes else None
        self._tasks: dict[object, TaskID] = {}
        self._done_bytes: dict[object, int] = {}
        self._ended: set[tuple[object, str]] = set()

    def show(self, item: ProgressItem) -> None:
        if self._bars:
            self._update_bars(self._bars, item)
        if item.mark and (item.key, item.mark) not in self._ended:
            self._ended.add((item.key, item.mark))
            line = f"{item.mark} {sanitize_for_terminal(item.title)}  {sanitize_for_terminal(item.status_text)}"
            sys.stderr.write(line.rstrip() + "\n")  # bars leave a place for it above them
            sys.stderr.flush()

    def _update_bars(self, bars: Progress, item: ProgressItem) -> None:
        if self._all is not None:
            bars.advance(self._all, item.done_bytes - self._done_bytes.get(item.key, 0))
            self._done_bytes[item.key] = item.done_bytes
        if not item.mark:
            if item.key not in self._tasks:
                self._tasks[item.key] = bars.add_task("")
            title, total = sanitize_for_terminal(item.title), item.total_bytes or None
            bars.update(self._tasks[item.key], description=title, completed=item.done_bytes, total=total)
        elif item.key in self._tasks:
            bars.remove_task(self._tasks.pop(item.key))
