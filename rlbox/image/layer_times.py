"""What each layer of an image that was just built took: bytes, and seconds of the steps that made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rlbox.amounts import size_text
from rlbox.image.build import Step
from rlbox.image.facts import LayerFacts

# Build stages that have another name than what `rlbox show` calls their layer; the others are named alike.
_STAGES = MappingProxyType(
    {
        "rlbox.os": "os",
        "rlbox.runtime": "runtime",
        "rlbox.venv": "environment",
        "rlbox.patches": "patches",
        "rlbox.fixes": "fixes",
        "rlbox.files": "rlbox",
        "rlbox.other": "other",
    }
)


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One layer, the lowest first: `size` in bytes, unpacked; `seconds` is None when nothing was done for it."""

    part: str
    size: int
    seconds: float | None


def layer_times(layers: Iterable[LayerFacts], steps: Iterable[Step]) -> tuple[LayerTime, ...]:
    """Return what each of `layers` took by the steps of one build; steps that ran at once each count in full."""
    spent = _seconds(steps)
    return tuple(LayerTime(part=one.part or one.command, size=one.size, seconds=spent.get(one.part)) for one in layers)


def _seconds(steps: Iterable[Step]) -> Mapping[str, float]:
    """Return the seconds of each build stage, by the name of its layer: `[torch.torch 2/2] RUN …`."""
    found: dict[str, float] = {}
    for step in steps:
        stage = step.name.partition(" ")[0].removeprefix("[")
        if step.name.startswith("[") and step.state == "done" and step.seconds is not None:
            part = _STAGES.get(stage, stage)
            found[part] = found.get(part, 0.0) + step.seconds
    return found


def layers_text(rows: Sequence[LayerTime]) -> str:
    """Return the layers and their sum as a table."""
    lines = [f"{size_text(row.size):>9}  {_spent(row.seconds):>8}  {row.part}" for row in rows]
    return "\n".join([*lines, f"{size_text(sum(row.size for row in rows)):>9}  {'':>8}  in all, unpacked"])


def _spent(seconds: float | None) -> str:
    return "cache" if seconds is None else f"{seconds:.1f} s"
