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
        gate=0.60,
        stretch=0.33,
        measure=diagnosing.whole_catalogue,
        rounds=7,
        quick_rounds=1,
    ),
    Goal(
        key="23b",
        what="the same, 500 signatures more",
        anchor=RIPGREP,
        gate=0.60,
        stretch=0.33,
        measure=diagnosing.five_hundred_more,
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
    Goal(
        key="24",
        what="diagnose it with RE2 alone",
        anchor=RIPGREP,
        gate=1.8,
        stretch=1.2,
        measure=diagnosing.without_hyperscan,
        rounds=5,
        quick_rounds=1,
    ),
    Goal(
        key="25",
        what="1 MB appended to a log of 1 GiB",
        anchor="python -c 'import click'",
        gate=3.0,
        stretch=1.6,
        measure=diagnosing.appended,
        rounds=15,
        quick_rounds=3,
    ),
)
