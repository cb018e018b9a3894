"""The goals, one entry each. A ratio below the gate must hold; the stretch value is what is aimed at."""

from __future__ import annotations

from benchmarks import building, hanging, running, startup, watching
from benchmarks.goal import Goal
from benchmarks.image_goals import IMAGE_GOALS
from benchmarks.log_goals import LOG_GOALS

CLICK = "python -c 'import click'"

GOALS = (
    Goal(key="1", what="rlbox --version", anchor=CLICK, gate=1.6, stretch=None, measure=startup.words("--version")),
    Goal(
        key="1b",
        what="TAB after `rlbox sh`",
        anchor=CLICK,
        gate=1.6,
        stretch=None,
        measure=startup.tab("rlbox sh", "shell"),
    ),
    Goal(
        key="1c",
        what="TAB after `rlbox build l`",
        anchor=CLICK,
        gate=1.6,
        stretch=None,
        measure=startup.tab("rlbox build l", "local"),
    ),
    Goal(key="2", what="rlbox --help", anchor=CLICK, gate=1.6, stretch=None, measure=startup.root_help),
    Goal(
        key="3",
        what="rlbox build --help",
        anchor=CLICK,
        gate=1.6,
        stretch=None,
        measure=startup.words("build", "--help"),
    ),
    Goal(
        key="3b", what="rlbox run --help", anchor=CLICK, gate=1.6, stretch=None, measure=startup.words("run", "--help")
    ),
    Goal(
        key="3c", what="usage error", anchor=CLICK, gate=1.6, stretch=None, measure=startup.words("buidl", exit_code=2)
    ),
    Goal(
        key="7",
        what="rlbox build, nothing changed",
        anchor="docker buildx build -q, no-op",
        gate=1.0,
        stretch=0.5,
        measure=building.unchanged,
        rounds=11,
    ),
    Goal(
        key="9",
        what="rlbox shell T -- true",
        anchor="docker run, a network of its own",
        gate=1.9,
        stretch=1.10,
        measure=running.against_plain_run,
        rounds=11,
    ),
    Goal(
        key="9b",
        what="rlbox shell T -- true",
        anchor="docker run, same flags",
        gate=1.9,
        stretch=1.10,
        measure=running.against_same_run,
        rounds=11,
    ),
    Goal(
        key="10",
        what="a further stage in the container",
        anchor="docker exec C true",
        gate=1.5,
        stretch=0.90,
        measure=running.further_stage,
        rounds=11,
    ),
    *IMAGE_GOALS,
    *LOG_GOALS,
    Goal(
        key="26",
        what="failure line to event, slowest of 40",
        anchor="a follower that polls at 100 ms",
        gate=0.5,
        stretch=0.02,
        measure=watching.line_to_event(0),
        rounds=5,
        quick_rounds=1,
    ),
    Goal(
        key="26b",
        what="the same in 1 MB/s of log",
        anchor="a follower that polls at 100 ms",
        gate=0.5,
        stretch=0.02,
        measure=watching.line_to_event(1e6),
        rounds=3,
        quick_rounds=1,
    ),
    Goal(
        key="26c",
        what="supervisor's CPU at 1 MB/s of log",
        anchor="one core",
        gate=0.03,
        stretch=0.015,
        of_limit=2.5,
        measure=watching.share_of_a_core,
        rounds=5,
        quick_rounds=1,
    ),
    Goal(
        key="27",
        what="steps of 1 s stop, heartbeats go on",
        anchor="the process group's 600 s",
        gate=0.05,
        stretch=0.045,
        measure=hanging.found("hang"),
        rounds=2,
        quick_rounds=1,
    ),
    Goal(
        key="27c",
        what="healthy logs that are called hung",
        anchor="one log",
        gate=0.5,
        stretch=0.0,
        measure=hanging.false_alarms,
        rounds=1,
        quick_rounds=1,
    ),
)
