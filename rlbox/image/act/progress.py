"""The build's steps with their times, moving on a terminal, one line each elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlbox.amounts import duration_text
from rlbox.image.build import Step

if TYPE_CHECKING:
    from rich.table import Table

_MARKS = {"running": "…", "done": "✓", "cached": "=", "failed": "✗"}


@contextmanager
def build_view(*, live: bool, quiet: bool) -> Iterator[Callable[[Step], None]]:
    """Yield a function to be told of every step that begins or ends."""
    if quiet:
        yield lambda step: None
    elif live:
        with _live_view() as on_step:
            yield on_step
    else:
        yield _print_step


def _print_step(step: Step) -> None:
    if step.state == "running" or _hidden(step):
        return
    sys.stderr.write(f"{_MARKS[step.state]} {step.name[:100]}{_seconds(step.seconds)}\n")
    sys.stderr.flush()


def _hidden(step: Step) -> bool:
    """Return whether a step is the client's own housekeeping rather than a line of the Dockerfile."""
    return step.name.startswith("[internal]") and step.state != "failed"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"  {duration_text(seconds)}"


@contextmanager
def _live_view() -> Iterator[Callable[[Step], None]]:
    from rich.console import Console
    from rich.live import Live

    steps: dict[int, Step] = {}
    began: dict[int, float] = {}
    console = Console(stderr=True)

    def table() -> Table:
        return _step_table(list(steps.values())[-(console.height - 4) :], began)

    with Live(console=console, refresh_per_second=8, get_renderable=table) as live:

        def on_step(step: Step) -> None:
            if not _hidden(step):
                steps[step.number] = step
                began.setdefault(step.number, time.monotonic())

        yield on_step
        live.refresh()


def _step_table(steps: list[Step], began: dict[int, float]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    styles = {"running": "cyan", "done": "green", "cached": "dim", "failed": "red"}
    table = Table.grid(padding=(0, 1))
    for step in steps:
        seconds = time.monotonic() - began[step.number] if step.state == "running" else step.seconds
        style = styles[step.state]
        table.add_row(f"[{style}]{_MARKS[step.state]}[/]", f"[{style}]{escape(step.name[:90])}[/]", _seconds(seconds))
    return table
