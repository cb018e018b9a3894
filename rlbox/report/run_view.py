"""A run as a person sees it: the stages while they run, and the table at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.act.run_state import RunState, StageState

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STYLES = {
    "passed": "green",
    "failed": "red",
    "running": "cyan",
    "starting": "cyan",
    "interrupted": "yellow",
    "waiting": "dim",
    "not started": "dim",
}
_TAIL_BYTES = 4096


@contextmanager
def run_view(run_dir: Path, *, live: bool, quiet: bool) -> Iterator[Callable[[RunState], None]]:
    """Yield a function to be given the run's state again and again."""
    if quiet:
        yield lambda state: None
    elif live:
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
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=5, transient=True) as live:
        yield lambda state: live.update(_live_table(state, run_dir))


def _live_table(state: RunState, run_dir: Path) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    current = next((stage for stage in state.stages if stage.state in ("starting", "running")), None)
    line = last_line(run_dir, current) if current else ""
    head = f"run {state.run_id}" + (f" · profile {state.profile}" if state.profile else "")
    return Group(Text(head, style="bold"), stage_table(state), Text(line, style="dim", no_wrap=True))


def stage_table(state: RunState) -> Table:
    """Return the table of stages: name, state, time, gate."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), header_style="bold")
    for column in ("stage", "state", "time", "gate", "services"):
        table.add_column(column, justify="right" if column == "time" else "left")
    for stage in state.stages:
        style = _STYLES[stage.state]
        services = " ".join(f"{service.name}:{service.state}" for service in stage.services)
        table.add_row(stage.name, Text(stage.state.upper(), style=style), seconds(stage), gate_count(stage), services)
    return table


def gate_count(stage: StageState) -> str:
    """Return how many rules of the stage's gate hold, and whether one is broken."""
    held = sum(rule.state == "held" for rule in stage.gate)
    broken = sum(rule.state == "broken" for rule in stage.gate)
    return f"{held}/{len(stage.gate)} held" + (f", {broken} broken" if broken else "")


def seconds(stage: StageState) -> str:
    """Return how long the stage took, or has been going on."""
    if not stage.started_at:
        return ""
    end = datetime.fromisoformat(stage.ended_at) if stage.ended_at else datetime.now(timezone.utc)
    return f"{(end - datetime.fromisoformat(stage.started_at)).total_seconds():.0f} s"


def last_line(run_dir: Path, stage: StageState) -> str:
    """Return the last line of the log that was written to last."""
    logs = sorted((run_dir / stage.directory).glob("*.log"), key=lambda path: path.stat().st_mtime)
    if not logs:
        return ""
    with open(logs[-1], "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
    found = [line.strip() for line in lines if line.strip()]
    return f"{logs[-1].stem}: {found[-1][:200]}" if found else ""


def summary_text(state: RunState) -> str:
    """Return the end of a run as text without colour: a table, and the cause where it failed."""
    width = max(len(stage.name) for stage in state.stages)
    rows = [
        f"{stage.name:<{width}}  {stage.state.upper():<11}  {seconds(stage):>6}  {gate_count(stage)}"
        for stage in state.stages
    ]
    return "\n".join(rows)
