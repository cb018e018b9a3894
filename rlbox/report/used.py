"""The plots of what a run used: cores, memory, disks, network and GPUs, each over the time of the run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from rlbox.amounts import GIB, moment
from rlbox.record.resources import Sample
from rlbox.report.plots import COLOURS, Plot, Series, draw_plot

_WAITS = (("for_cpu", "waits_cpu_pct"), ("for_io", "waits_io_pct"), ("for_memory", "waits_memory_pct"))
_FULL = 95
"""Percent of what it could use from which on a run had all of it, and there is nothing to draw."""
_Drawn = tuple[str, str, list[Series]]
"""The word of a plot, its unit, and what it shows."""


def resource_plots(samples: Sequence[Sample], words: Mapping[str, Any]) -> list[Plot]:
    """Return the plots of what was used, each over the time of the run; none without samples."""
    timed = [(at, sample) for sample in samples if (at := moment(sample.t)) is not None]
    if not timed:
        return []
    used = _Used(timed, words)
    across = (timed[0][0], max(timed[-1][0], timed[0][0] + 1))
    found = [
        draw_plot(words[title], series, unit=unit, x="time", x_range=across, from_zero=True)
        for title, unit, series in (*used.cores(), *used.storage(), *used.gpus())
    ]
    return [plot for plot in found if plot]


@dataclass(frozen=True)
class _Used:
    """What was used at each time (Unix seconds), and how a page calls it."""

    timed: Sequence[tuple[float, Sample]]
    words: Mapping[str, Any]

    def cores(self) -> list[_Drawn]:
        """Return what was used of the cores, and what was waited for."""
        samples = [sample for _, sample in self.timed]
        share = self._run(("share_got", "share_pct")) if any(s.share_pct < _FULL for s in samples) else []
        held = self._run(("held_back_by", "held_pct")) if any(s.held_pct for s in samples) else []
        return [
            ("cpu", "%", [*self._run(("all_parts", "cpu_pct"), ("others", "others_pct")), *self._parts("cpu_pct")]),
            ("share", "%", share),
            ("held_back", "%", held),
            ("load", "", self._run(("load", "load"))),
            ("pressure", "%", self._run(*_WAITS)),
        ]

    def storage(self) -> list[_Drawn]:
        """Return what was used of memory, disks and network."""
        resident = [*self._run(("all_parts", "resident_bytes")), *self._parts("resident_bytes")]
        return [
            ("memory", "bytes", resident),
            ("disk_io", "bytes/s", self._run(("read", "read_bps"), ("written", "write_bps"))),
            ("network", "bytes/s", self._run(("received", "received_bps"), ("sent", "sent_bps"))),
            ("disk_free", "bytes", self._run(("disk_free", "disk_free_bytes"))),
        ]

    def gpus(self) -> list[_Drawn]:
        """Return what was used of each GPU."""
        return [
            ("gpu_load", "%", self._gpus("utilization")),
            ("gpu_power", "W", self._gpus("power_w")),
            ("gpu_memory", "GiB", [_in_gib(series) for series in self._gpus("memory_bytes")]),
        ]

    def _over(self, name: str, value: Callable[[Sample], float | None]) -> Series:
        points = ((at, value(sample)) for at, sample in self.timed)
        return Series(name=name, points=tuple((at, y) for at, y in points if y is not None))

    def _run(self, *named: tuple[str, str]) -> list[Series]:
        """Return fields of the whole run, each under its word."""
        return [self._over(self.words[word], attrgetter(field)) for word, field in named]

    def _parts(self, field: str) -> list[Series]:
        """Return a field of the parts that need most memory, as many as can be told apart."""
        most: dict[str, int] = {}
        for _, sample in self.timed:
            for name, part in sample.parts.items():
                most[name] = max(most.get(name, 0), part.resident_bytes)
        busiest = sorted(most, key=lambda name: (-most[name], name))[: COLOURS - 1]

        def of(name: str) -> Callable[[Sample], float | None]:
            return lambda sample: getattr(sample.parts[name], field) if name in sample.parts else None

        return [self._over(name, of(name)) for name in busiest]

    def _gpus(self, field: str) -> list[Series]:
        """Return a field of each GPU."""
        known = sorted({gpu.index for _, sample in self.timed for gpu in sample.gpus})

        def of(index: int) -> Callable[[Sample], float | None]:
            return lambda sample: next((getattr(gpu, field) for gpu in sample.gpus if gpu.index == index), None)

        return [self._over(f"GPU {index}", of(index)) for index in known]


def _in_gib(series: Series) -> Series:
    """Return memory of a GPU in the unit of its driver: see `amounts.card_text`."""
    return replace(series, points=tuple((at, size / GIB) for at, size in series.points))
