"""How checkpoints are shown: a table for each training, what is wrong, and what can be removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlbox.amounts import columns, size_text
from rlbox.training.ckpt import Checkpoint, CheckpointSeries

_COLUMNS = ("step", "kind", "state", "size", "model", "optimizer", "hf export")


def series_text(found: Sequence[CheckpointSeries], *, removable: bool) -> str:
    """Return all series as text; what can be removed only when asked for."""
    return "\n\n".join("\n".join(_lines(series, removable)) for series in found)


def _lines(series: CheckpointSeries, removable: bool) -> Iterator[str]:
    yield series.path
    yield from (f"  {line}" for line in columns([_COLUMNS, *map(_row, series.checkpoints)]))
    for checkpoint in series.checkpoints:
        name = checkpoint.path.rpartition("/")[2]
        yield from (f"  {name}: {problem}" for problem in checkpoint.problems)
    yield from (f"  {problem}" for problem in series.problems)
    if removable and series.spare:
        yield f"  can be removed, {size_text(sum(row.size for row in series.spare))}:"
        yield from (f"    {size_text(row.size):>9}  {row.path}  ({row.why})" for row in series.spare)


def _row(row: Checkpoint) -> tuple[str, ...]:
    state = "whole" if row.whole else "torn, or being written" if row.busy else "torn"
    sizes = [size_text(row.parts[part]) if row.parts.get(part) else "-" for part in ("model", "optimizer")]
    if row.kind == "megatron" and row.has_optimizer and sizes[1] == "-":
        sizes[1] = "with the model"
    exported = size_text(row.parts.get("hf", 0)) if row.exported else "-"
    step = "-" if row.step is None else str(row.step)
    return (step, row.kind, state + (", latest" if row.latest else ""), size_text(row.size), *sizes, exported)
