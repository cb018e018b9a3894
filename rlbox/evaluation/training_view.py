"""How what stands beside a training is shown: checkpoints, GPUs, parts of a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlbox.amounts import card_text, columns, duration_text, size_text
from rlbox.evaluation.ckpt import Checkpoint, CheckpointSeries
from rlbox.evaluation.components import Part
from rlbox.evaluation.gpu_split import GpusHere, Split

_COLUMNS = ("step", "kind", "state", "size", "model", "optimizer", "hf export")

_PART_WORDS = {"ok": "ok", "failed": "failed", "late": "late", "no-gpu": "no GPU", "absent": "absent"}
_PART_WIDTH = 18


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


def gpus_text(facts: GpusHere, split: Split) -> str:
    """Return the GPUs, Ray's nodes, where each role is, and what is wrong."""
    return "\n".join(_gpu_lines(facts, split))


def _gpu_lines(facts: GpusHere, split: Split) -> Iterator[str]:
    for gpu in facts.gpus:
        state = "free" if gpu.free else "held"
        yield f"GPU {gpu.index}  {state}  {gpu.name}  {card_text(gpu.used)} of {card_text(gpu.total)}"
        yield from (f"       pid {holder.pid}  {holder.who}" for holder in gpu.holders)
    for node in facts.ray or ():
        yield f"Ray    {'alive' if node.alive else 'lost'}  {node.address}  {node.gpus} GPUs"
    yield from (f"node {node}  {role}: {count} GPUs" for role, node, count in split.placed)
    yield from (f"note: {text}" for text in split.notes)
    yield from (f"wrong: {text}" for text in split.problems)


def part_text(part: Part) -> str:
    """Return a part as one line, with the next step below it when it failed."""
    line = f"{_PART_WORDS[part.state]:<7} {part.name:<{_PART_WIDTH}} {part.detail}"
    line += f", {duration_text(part.seconds)}" if part.seconds >= 0.1 else ""
    return f"{line}\n{'':<8}next: {part.next_step}" if part.next_step else line


def parts_summary(parts: Sequence[Part], seconds: float) -> str:
    """Return the line that stands on stderr: `components: 9 ok, 1 failed, 3 want a GPU, 4 absent, 8.2 s`."""
    counts = {state: sum(part.state == state for part in parts) for state in _PART_WORDS}
    said = [f"{counts['ok']} ok"]
    said += [f"{counts['failed']} failed"] if counts["failed"] else []
    said += [f"{counts['late']} not done in time"] if counts["late"] else []
    said += [f"{counts['no-gpu']} not tested: there is no GPU here"] if counts["no-gpu"] else []
    said += [f"{counts['absent']} not in this stack"] if counts["absent"] else []
    return f"components: {', '.join(said)}, {duration_text(seconds)}"


def parts_data(parts: Sequence[Part], python: str, seconds: float) -> dict[str, Any]:
    """Return the test as JSON types."""
    failed, late = ([part.name for part in parts if part.state == state] for state in ("failed", "late"))
    rows = [part.as_json() for part in parts]
    return {"python": python, "seconds": round(seconds, 2), "failed": failed, "late": late, "parts": rows}
