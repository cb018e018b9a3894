"""The share of a GPU that a run's inference engines ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import load_cases

from rlbox.config.project import Project
from rlbox.job.job import Job, load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, RunPlan, plan_run
from rlbox.supervise.supervisor import estimate_inference_gpu_memory_percent_or_0

CASES = load_cases("job", "test_engine_memory")
SHIPPED = Project(folder=Path(__file__).parents[3])
PATHS = ProcessPaths(run="/r", job="/r/job", data="/d", python="python", rlbox="rlbox")


def planned(job: Job, profile: str = "") -> RunPlan:
    values = resolve_params(job, [profile] if profile else [], {})
    return plan_run(job, values, PATHS, run_id="r", place="docker", target=job.target)


@pytest.mark.parametrize(("job", "profile", "percent"), CASES["shipped_jobs"])
def test_shipped_jobs(job: str, profile: str, percent: int) -> None:
    assert estimate_inference_gpu_memory_percent_or_0(planned(load_job(SHIPPED, job), profile)) == percent


@pytest.mark.parametrize(("command", "percent"), CASES["a_command"])
def test_a_command(command: list[str], percent: int) -> None:
    stage = {"name": "one", "title": "t", "command": command}
    job = Job.model_validate({"name": "mine", "title": "t", "target": "local", "stages": [stage]})
    assert estimate_inference_gpu_memory_percent_or_0(planned(job)) == percent
