"""What a shipped job would run, as values."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from rlbox.config.project import Project
from rlbox.job.job import Job, load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, RunPlan, StagePlan, plan_run

PATHS = ProcessPaths(run="/data/runs/one", job="/data/runs/one/job", data="/data", python="python")


@functools.cache
def job_of(name: str) -> Job:
    """Return a shipped job."""
    return load_job(Project(folder=Path(__file__).parents[2]), name)


def plan_of(
    job: str, profile: str = "", settings: Mapping[str, str] | None = None, paths: ProcessPaths = PATHS
) -> RunPlan:
    """Return the plan of one profile of a shipped job."""
    found = job_of(job)
    values = resolve_params(found, [profile] if profile else [], dict(settings or {}))
    return plan_run(found, values, paths, run_id="one", place="docker", target=found.target)


def stage_of(plan: RunPlan, name: str) -> StagePlan:
    """Return one stage of a plan."""
    return next(stage for stage in plan.stages if stage.name == name)


def overrides(stage: StagePlan, module: str) -> list[str]:
    """Return the Hydra overrides behind `-m MODULE` (and its own options) in a stage's command."""
    argv = list(stage.argv)
    behind = argv[len(argv) - argv[::-1].index(module) :]
    while behind and behind[0].startswith("--"):
        behind = behind[2:]
    return [word for word in behind if not word.startswith("hydra.")]


def settings_of(words: list[str]) -> dict[str, str]:
    """Return overrides as key to value, without the marks + and ~."""
    return {key.lstrip("+~"): value for key, _, value in (word.partition("=") for word in words)}
