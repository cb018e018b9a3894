"""How GPUs, their holders and a split of them are shown."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.amounts import size_text
from rlbox.training.gpu_split import GpusHere, Split


def gpus_text(facts: GpusHere, split: Split) -> str:
    """Return the GPUs, Ray's nodes, where each role is, and what is wrong."""
    return "\n".join(_lines(facts, split))


def _lines(facts: GpusHere, split: Split) -> Iterator[str]:
    if not facts.gpus:
        yield "no GPU here: there is no driver, or it does not answer"
    for gpu in facts.gpus:
        state = "free" if gpu.free else "held"
        yield f"GPU {gpu.index}  {state}  {gpu.name}  {size_text(gpu.used)} of {size_text(gpu.total)}"
        yield from (f"       pid {holder.pid}  {holder.who}" for holder in gpu.holders)
    for node in facts.ray or ():
        yield f"Ray    {'alive' if node.alive else 'lost'}  {node.address}  {node.gpus} GPUs"
    yield from (f"node {node}  {role}: {count} GPUs" for role, node, count in split.placed)
    yield from (f"note: {text}" for text in split.notes)
    yield from (f"wrong: {text}" for text in split.problems)
