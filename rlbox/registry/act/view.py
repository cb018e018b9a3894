"""Progress of what is sent or written: layers with their bytes, moving on a terminal, one line each elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlbox.amounts import transfer_size
from rlbox.registry.push_log import PushedLayer

_MARKS = {"pushed": "✓", "present": "="}
_WORDS = {"waiting": "waiting", "pushing": "pushing", "pushed": "pushed", "present": "already there"}


@contextmanager
def push_view(*, live: bool, quiet: bool) -> Iterator[Callable[[PushedLayer], None]]:
    """Yield a function to be told of every change of a layer."""
    if quiet:
        yield lambda layer: None
    elif live:
        with _live_layers() as on_layer:
            yield on_layer
    else:
        yield _printer()


def _printer() -> Callable[[PushedLayer], None]:
    told: set[str] = set()

    def on_layer(layer: PushedLayer) -> None:
        if layer.state in _MARKS and layer.key not in told:
            told.add(layer.key)
            size = f"  {transfer_size(layer.total)}" if layer.total else ""
            sys.stderr.write(f"{_MARKS[layer.state]} {layer.key}  {_WORDS[layer.state]}{size}\n")
            sys.stderr.flush()

    return on_layer


@contextmanager
def _live_layers() -> Iterator[Callable[[PushedLayer], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    tasks: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[sizes]}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def on_layer(layer: PushedLayer) -> None:
            if layer.key not in tasks:
                tasks[layer.key] = progress.add_task(layer.key, sizes="")
            ended = layer.state in _MARKS
            total = max(layer.total, layer.done)
            sizes = transfer_size(total) if ended else f"{transfer_size(layer.done)} of {transfer_size(total)}"
            progress.update(
                tasks[layer.key],
                description=f"{layer.key}  {_WORDS[layer.state]:<13}",
                completed=total or 1 if ended else layer.done,
                total=total or 1,
                sizes=sizes if total else "",
            )

        yield on_layer


@contextmanager
def bytes_view(what: str, total: int, *, live: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to be told of bytes as they pass; it shows a bar on a terminal, nothing elsewhere."""
    if not live:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
