"""The goals about logs that `rlbox diagnose` reads, one entry each."""

from __future__ import annotations

from benchmarks import diagnosing
from benchmarks.goal import Goal

RIPGREP = "rg -j1 -a -c -f 120 patterns"

LOG_GOALS = (
    Goal(
        key="23",
        what="diagnose a healthy log of 1 GiB",
        anchor=RIPGREP,
        gate=1.2,
        stretch=0.7,
        measure=diagnosing.whole_catalogue,
        rounds=7,
        quick_rounds=1,
    ),
    Goal(
        key="23c",
        what="its peak memory",
        anchor="200 MB",
        gate=1.0,
        stretch=0.5,
        measure=diagnosing.memory,
        rounds=3,
        quick_rounds=1,
    ),
)
