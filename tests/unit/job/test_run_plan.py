"""What a run will do: parameters, placeholders, the plan as a whole and on disk."""

from __future__ import annotations

import json

import pytest
from fakes import CHECKOUT, Folder, load_cases
from hypothesis import given
from hypothesis import strategies as st

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.job.job import Job, load_job
from rlbox.job.params import ParamValues, resolve_params
from rlbox.job.plan import ProcessPaths, RunPlan, parse_run_plan, plan_run

CASES = load_cases("job", "test_run_plan")
JOB = CASES["JOB"]
PATHS = ProcessPaths(run="/d/runs/j-1", job="/d/runs/j-1/job", data="/d", python="/opt/venv/bin/python")


@pytest.fixture
def job(folder: Folder) -> Job:
    folder.job("two", JOB)
    return load_job(folder.project, "two")


def planned(job: Job, values: ParamValues | None = None, paths: ProcessPaths = PATHS) -> RunPlan:
    return plan_run(job, values or resolve_params(job, "", {}), paths, run_id="j-1", place="docker", target="local")


def test_the_plan_survives_its_file(job: Job) -> None:
    plan = planned(job)
    assert parse_run_plan(json.loads(json.dumps(plan.as_json()))) == plan


def test_load_run_plan_with_keys_of_an_older_rlbox_ignores_them(job: Job) -> None:
    data = planned(job).as_json()
    data["stages"][1]["forbid"][0] |= {"count": 1, "at_most": None, "within_s": None}
    data["stages"][1]["services"][0]["ready"]["port"] = 0
    assert parse_run_plan(data).stages[1].forbid == planned(job).stages[1].forbid


def test_load_run_plan_with_a_broken_pattern_names_its_key(job: Job) -> None:
    data = planned(job).as_json()
    data["stages"][1]["forbid"][0]["pattern"] = "("
    with pytest.raises(SpecError, match=r"stages\.1\.forbid\.0\.pattern"):
        parse_run_plan(data)


def test_a_plan_of_another_schema(job: Job) -> None:
    with pytest.raises(SpecError) as caught:
        parse_run_plan({**planned(job).as_json(), "schema": 2})
    assert str(caught.value) == "plan.json has schema 2, this rlbox reads 1"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12))
def test_a_path_in_a_pattern_stands_for_itself(tmp_path_factory: pytest.TempPathFactory, folder_name: str) -> None:
    import re

    place = Folder(tmp_path_factory.getbasetemp() / "pattern")
    place.job("two", JOB)
    paths = ProcessPaths(run=folder_name, job="/j", data="/d", python="/p")
    pattern = planned(load_job(place.project, "two"), paths=paths).stages[1].require[0].pattern
    assert re.search(pattern, f"saved 12 to {folder_name}/out.")


@pytest.mark.parametrize(("before", "after", "where", "name"), CASES["a_placeholder_that_names_nothing"])
def test_a_placeholder_that_names_nothing(folder: Folder, before: str, after: str, where: str, name: str) -> None:
    assert before in JOB
    folder.job("two", JOB.replace(before, after))
    with pytest.raises(SpecError) as caught:
        planned(load_job(folder.project, "two"))
    assert str(caught.value) == (
        f"jobs/two.toml: {where}: {{{name}}} names nothing\n"
        "  next:  known: {attempt} {data} {job} {param.lr} {param.note} {param.rounds} {port.http} {port.ray_port} "
        "{python} {rlbox} {run}"
    )


@pytest.mark.parametrize(("profile", "settings", "message"), CASES["parameters_that_cannot_be"])
def test_parameters_that_cannot_be(job: Job, profile: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_params(job, profile, settings)
    own = "" if "next:" in message else "\n  next:  rlbox show two prints the allowed values of each parameter"
    assert str(caught.value) == message + own
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", Project(folder=CHECKOUT).own_pack_and_shipped_job_files())
def test_shipped_jobs_can_be_planned(name: str) -> None:
    job = load_job(Project(folder=CHECKOUT), name)
    for profile in ("", *job.profiles):
        plan = planned(job, resolve_params(job, profile, {}))
        assert parse_run_plan(json.loads(json.dumps(plan.as_json()))) == plan
