"""Series of numbers for plots, thinned to what a plot can show. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlbox.record.resources import GpuSample, PartSample, Sample

Points = tuple[tuple[float, float], ...]
_TICKS = 5
_STRETCHES = 50


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a plot: `points` are (x, y) by rising x; `unit` is that of y, empty for a bare number."""

    name: str
    points: Points
    unit: str = ""


def thin_points(points: Sequence[tuple[float, float]], limit: int) -> Points:
    """Return at most `limit` of the points, the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= limit:
        return tuple(points)
    stretches = max(1, limit // 2)
    found: list[tuple[float, float]] = []
    for number in range(stretches):
        part = points[number * len(points) // stretches : (number + 1) * len(points) // stretches]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        found += sorted({low, high})
    return tuple(found)


def trend_points(points: Sequence[tuple[float, float]]) -> Points:
    """Return the means of stretches of the points, to see through the noise; nothing for too few points."""
    if len(points) < 2 * _STRETCHES:
        return ()
    cuts = [number * len(points) // _STRETCHES for number in range(_STRETCHES + 1)]
    parts = [points[begin:end] for begin, end in itertools.pairwise(cuts)]
    return tuple(
        (math.fsum(x for x, _ in part) / len(part), math.fsum(y for _, y in part) / len(part)) for part in parts
    )


def merge_samples(samples: Iterable[Sample], limit: int) -> list[Sample]:
    """Return at most `limit` samples for any number of them, neighbours merged; memory is that of `2 * limit`.

    A merged sample has the means of rates and loads, the highest memory and the lowest free disk space.
    """
    kept: list[Sample] = []
    stride, waiting = 1, list[Sample]()
    for sample in samples:
        waiting.append(sample)
        if len(waiting) < stride:
            continue
        kept.append(_merged(waiting))
        waiting = []
        if len(kept) >= 2 * limit:
            kept = [_merged(kept[at : at + 2]) for at in range(0, len(kept), 2)]
            stride *= 2
    if waiting:
        kept.append(_merged(waiting))
    while len(kept) > limit:
        kept = [_merged(kept[at : at + 2]) for at in range(0, len(kept), 2)]
    return kept


def ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Return round numbers from `low` to `high`, about `most` of them, to label an axis with."""
    if not math.isfinite(high - low) or high <= low:
        return [low]
    rough = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(rough))
    step = scale * next(factor for factor in (1, 2, 5, 10) if factor * scale >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _merged(samples: Sequence[Sample]) -> Sample:
    if len(samples) == 1:
        return samples[0]
    last, count = samples[-1], len(samples)

    def mean(name: str) -> float:
        return math.fsum(getattr(sample, name) for sample in samples) / count

    return Sample(
        t=last.t,
        stage=last.stage,
        phase=last.phase,
        cpu_pct=mean("cpu_pct"),
        resident_bytes=max(sample.resident_bytes for sample in samples),
        read_bps=mean("read_bps"),
        write_bps=mean("write_bps"),
        received_bps=mean("received_bps"),
        sent_bps=mean("sent_bps"),
        disk_free_bytes=min(sample.disk_free_bytes for sample in samples),
        gpus=_merged_gpus([sample.gpus for sample in samples]),
        parts=_merged_parts(samples),
    )


def _merged_gpus(rows: Sequence[tuple[GpuSample, ...]]) -> tuple[GpuSample, ...]:
    by_index: dict[int, list[GpuSample]] = {}
    for gpu in (gpu for row in rows for gpu in row):
        by_index.setdefault(gpu.index, []).append(gpu)
    return tuple(
        GpuSample(
            index=index,
            utilization=math.fsum(gpu.utilization for gpu in gpus) / len(gpus),
            power_w=math.fsum(gpu.power_w for gpu in gpus) / len(gpus),
            memory_bytes=max(gpu.memory_bytes for gpu in gpus),
            total_bytes=gpus[-1].total_bytes,
        )
        for index, gpus in sorted(by_index.items())
    )


def _merged_parts(samples: Sequence[Sample]) -> dict[str, PartSample]:
    names = sorted({name for sample in samples for name in sample.parts})
    found = {}
    for name in names:
        own = [sample.parts[name] for sample in samples if name in sample.parts]
        found[name] = PartSample(
            cpu_pct=math.fsum(part.cpu_pct for part in own) / len(samples),
            resident_bytes=max(part.resident_bytes for part in own),
        )
    return found
