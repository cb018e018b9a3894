"""Which GPUs each of several engines gets that share the problems of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlbox.evaluation.gpu_split import GpuState
from rlbox.i18n import _

SEEN = "CUDA_VISIBLE_DEVICES"
_SPLITS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
MOST = 64
"""Engines, at most."""


def share_gpus(
    wanted: int, gpus: Sequence[GpuState], visible: str | None, settings: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Return the environment of each engine, which chooses its GPUs.

    Parameters
    ----------
    wanted
        How many engines; 0: as many as free GPUs allow, and one at least.
    gpus
        Those of this machine; without any, engines compute on the processor.
    visible
        `CUDA_VISIBLE_DEVICES`, where it is set: no other is used.
    settings
        Of the engine: over how many GPUs one is spread.

    Raises
    ------
    ValueError
        Too few are free.
    """
    if not gpus or wanted == 1:
        return [{} for __ in range(max(1, wanted))]
    given = {name.replace("-", "_"): value for name, value in settings.items()}
    each = math.prod(int(given.get(name, 1)) for name in _SPLITS)
    free = _free(gpus, visible)
    count = wanted or min(MOST, len(free) // each)
    if not count:  # it says itself what it lacks
        return [{}]
    if count * each > len(free):
        held = ", ".join(str(gpu.index) for gpu in gpus if not gpu.free) or _("none")
        raise ValueError(
            _("{count} servers need {count2} free GPUs, there are {free_count} (held: {held})").format(
                count=count, count2=count * each, free_count=len(free), held=held
            )
        )
    shares = [free[at * each : (at + 1) * each] for at in range(count)]
    return [{SEEN: ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} for names in shares]


def _free(gpus: Sequence[GpuState], visible: str | None) -> list[str]:
    """Return those that may be used and that nobody holds, as programs name them; a UUID counts as free."""
    free = {str(gpu.index): gpu.free for gpu in gpus}
    if visible is None:
        return [name for name, unused in free.items() if unused]
    return [name for name in (word.strip() for word in visible.split(",")) if name and free.get(name, "-" in name)]
