"""The goals, one entry each. A ratio below the gate must hold; the stretch value is what is aimed at."""

from __future__ import annotations

from benchmarks import building, rendering, running, startup
from benchmarks.goal import Goal
from benchmarks.image_goals import IMAGE_GOALS

CLICK = "python -c 'import click'"
JINJA = "python -c 'import click,jinja2'"

GOALS = (
    Goal(key="1", what="rlbox --version", anchor=CLICK, gate=0.40, stretch=0.30, measure=startup.words("--version")),
    Goal(
        key="1b",
        what="TAB after `rlbox sh`",
        anchor=CLICK,
        gate=0.40,
        stretch=0.30,
        measure=startup.tab("rlbox sh", "shell"),
    ),
    Goal(
        key="1c",
        what="TAB after `rlbox build l`",
        anchor=CLICK,
        gate=None,
        stretch=0.40,
        measure=startup.tab("rlbox build l", "local"),
    ),
    Goal(key="2", what="rlbox --help", anchor=CLICK, gate=1.25, stretch=0.35, measure=startup.root_help),
    Goal(
        key="3",
        what="rlbox build --help",
        anchor=CLICK,
        gate=1.4,
        stretch=1.2,
        measure=startup.words("build", "--help"),
    ),
    Goal(
        key="3b", what="rlbox run --help", anchor=CLICK, gate=1.4, stretch=1.2, measure=startup.words("run", "--help")
    ),
    Goal(
        key="3c", what="usage error", anchor=CLICK, gate=1.4, stretch=1.2, measure=startup.words("buidl", exit_code=2)
    ),
    Goal(
        key="4",
        what="render, rendered files missing",
        anchor=JINJA,
        gate=1.35,
        stretch=1.10,
        measure=rendering.files_missing,
    ),
    Goal(
        key="4b",
        what="render, nothing changed",
        anchor=JINJA,
        gate=None,
        stretch=0.65,
        measure=rendering.nothing_changed,
    ),
    Goal(
        key="4c",
        what="render, target's file changed",
        anchor=JINJA,
        gate=None,
        stretch=None,
        measure=rendering.spec_changed,
    ),
    Goal(
        key="5",
        what="render 50 targets, files missing",
        anchor="rlbox render of one",
        gate=1.5,
        stretch=1.2,
        measure=rendering.many,
    ),
    Goal(
        key="5b",
        what="render 50 targets, all changed",
        anchor="rlbox render of one",
        gate=None,
        stretch=None,
        measure=rendering.many_changed,
        rounds=5,
    ),
    Goal(
        key="6",
        what="render in process, a line",
        anchor="hpccm in process, a line",
        gate=0.5,
        stretch=0.16,
        measure=rendering.per_line,
    ),
    Goal(
        key="7",
        what="rlbox build, nothing changed",
        anchor="docker buildx build -q, no-op",
        gate=0.40,
        stretch=0.20,
        measure=building.unchanged,
        rounds=11,
    ),
    Goal(
        key="8",
        what="rlbox build --rebuild, all cached",
        anchor="docker buildx build, same flags",
        gate=1.20,
        stretch=1.10,
        measure=building.through_buildkit,
        rounds=11,
    ),
    Goal(
        key="9",
        what="rlbox shell T -- true",
        anchor="docker run --rm --network host",
        gate=1.40,
        stretch=1.10,
        measure=running.against_plain_run,
        rounds=11,
    ),
    Goal(
        key="9b",
        what="rlbox shell T -- true",
        anchor="docker run, same flags",
        gate=None,
        stretch=1.10,
        measure=running.against_same_run,
        rounds=11,
    ),
    Goal(
        key="10",
        what="a further stage in the container",
        anchor="docker exec C true",
        gate=1.15,
        stretch=0.90,
        measure=running.further_stage,
        rounds=11,
    ),
    *IMAGE_GOALS,
)
