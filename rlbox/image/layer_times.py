"""What each layer of an image that was just built took: bytes, and seconds of the steps that made it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rlbox.amounts import duration_text, size_text
from rlbox.image.build import Step
from rlbox.image.facts import LayerFacts

# Build stages that have another name than what `rlbox show` calls their layer; what all others lay, their copies tell.
_STAGES = MappingProxyType(
    {
        "os": "rlbox.os",
        "runtime": "rlbox.runtime",
        "environment": "rlbox.venv",
        "patches": "rlbox.patches",
        "fixes": "rlbox.fixes",
        "rlbox": "rlbox.files",
        "other": "rlbox.other",
    }
)
_COPY = re.compile(r"COPY (?:--link )?--from=(\S+) (/out/\S+/ /)$")


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One layer, the lowest first: `size` in bytes, unpacked; `seconds` is None when nothing was done for it."""

    part: str
    size: int
    seconds: float | None


def layer_times(layers: Iterable[LayerFacts], steps: Iterable[Step]) -> tuple[LayerTime, ...]:
    """Return what each of `layers` took by the steps of one build.

    Steps that ran at once each count in full, and those of a stage for every layer that it lays.
    """
    steps = list(steps)
    spent = _seconds(steps)
    stages = {f"COPY {copy[2]}": copy[1] for step in steps if (copy := _COPY.search(step.name))}
    return tuple(
        LayerTime(
            part=one.part or one.command,
            size=one.size,
            seconds=spent.get(stages.get(one.command) or _STAGES.get(one.part, "")),
        )
        for one in layers
    )


def _seconds(steps: Iterable[Step]) -> Mapping[str, float]:
    """Return the seconds of each build stage: `[torch.large 2/2] RUN …`."""
    found: dict[str, float] = {}
    for step in steps:
        stage = step.name.partition(" ")[0].removeprefix("[")
        if step.name.startswith("[") and step.state == "done" and step.seconds is not None:
            found[stage] = found.get(stage, 0.0) + step.seconds
    return found


def layers_text(rows: Sequence[LayerTime]) -> str:
    """Return the layers and their sum as a table."""
    lines = [f"{size_text(row.size):>9}  {_spent(row.seconds):>10}  {row.part}" for row in rows]
    return "\n".join([*lines, f"{size_text(sum(row.size for row in rows)):>9}  {'':>10}  in all, unpacked"])


def _spent(seconds: float | None) -> str:
    return "cache" if seconds is None else duration_text(seconds)
