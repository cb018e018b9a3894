"""Files on their way into the page cache: one bar on a terminal, and one line at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlbox.amounts import duration_text, size_text
from rlbox.training.warm import Warmed


@contextmanager
def warm_view(total: int, *, live: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to be told of bytes that were read; `total` is how many there are."""
    if not live:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("into memory", total=total)
        yield lambda count: bars.advance(bar, count)


def warmed_text(warmed: Warmed) -> str:
    """Return one line: how much is there, how fast it came."""
    files = f"{len(warmed.files)} file{'' if len(warmed.files) == 1 else 's'}, {size_text(warmed.size)}"
    if warmed.share is None:
        there = "read, but the kernel does not tell how much of it is in memory"
    else:
        there = f"{int(warmed.share * 1000) / 10:g} % in memory"
    if not warmed.read:
        return f"{files}: {there}, nothing was read"
    speed = size_text(warmed.read / max(warmed.seconds, 1e-6))
    return f"{files}: {there}, {size_text(warmed.read)} read in {duration_text(warmed.seconds)} ({speed}/s)"
