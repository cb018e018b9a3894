"""On which GPUs the lock of a target has run: the kept runs of docs/proof.md whose gates all held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from rlbox.i18n import _
from rlbox.target.lock import Lock
from rlbox.target.target import Target

TESTED_RUNS = Path(__file__).with_name("tested.json")
"""Written by `scripts/proof.py`."""


class _TestedRun(NamedTuple):
    """One passed run: `lock` is the content digest of its lock."""

    job: str
    profile: str
    gpu: str
    gpus: int
    place: str
    date: str
    lock: str


def _find_tested_runs(lock: Lock) -> list[_TestedRun]:
    digest = lock.digest_without_target_and_spec()
    rows = [_TestedRun(**row) for row in json.loads(TESTED_RUNS.read_text("utf-8"))]
    return sorted((row for row in rows if row.lock == digest), key=lambda row: (row.date, row.gpus))


def describe_gpu_test_if_has_gpus(target: Target, lock: Lock | None) -> str | None:
    """Return `ran on GPUS, DATE` or `untested on GPU`; None for a target without GPUs."""
    if not target.hardware.gpus:
        return None
    runs = _find_tested_runs(lock) if lock else []
    if runs:
        last = runs[-1]
        return _("ran on {gpus} x {gpu}, {date}").format(gpus=last.gpus, gpu=last.gpu, date=last.date)
    return _("untested on {gpu}").format(gpu=target.hardware.gpu or _("GPUs"))
