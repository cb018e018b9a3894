"""A job with a table `[source]`: its parameter, `{source}`, and PYTHONPATH of its stages and services."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT, Folder, load_cases

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, RunPlan, container_source_path_or_empty, plan_run
from rlbox.run.inputs import plan_container_run

CASES = load_cases("job", "test_source")
JOB = CASES["JOB"]

TRAINERS = ("sft", "grpo", "gkd", "xdan", "holdem")


def plan_of(folder: Folder, text: str, source: str) -> RunPlan:
    folder.job("one", text)
    job = load_job(folder.project, "one")
    paths = ProcessPaths(run="/r", job="/r/job", data="/data", python="python", source=source)
    return plan_run(job, resolve_params(job, "", {}), paths, run_id="r", place="here", target="mine")


def test_source_comes_first_on_pythonpath(folder: Folder) -> None:
    plan = plan_of(folder, JOB, "/fork")
    assert plan.env == {"PYTHONPATH": "/fork:/r/job"}
    assert plan.stages[0].env == {}  # its own variables are added to those of the run
    assert plan.stages[0].services[0].env == {}
    assert plan.stages[1].env == {"PYTHONPATH": "/fork:/own"}


def test_without_source_nothing_changes(folder: Folder) -> None:
    plan = plan_of(folder, JOB, "")
    assert plan.env == {"PYTHONPATH": "/r/job"}
    assert plan.stages[1].env == {"PYTHONPATH": "/own"}
    assert plan.params == {"source": ""}


def test_source_placeholder_is_the_tree_or_the_installed_one(folder: Folder) -> None:
    text = JOB.replace('version = "0.9.1"', 'version = "0.9.1"\ninstalled = "/opt/verl"')
    text = text.replace('"{job}"', '"{job}:{source}:/last"').replace('["train"]', '["{source}/train.py"]')
    plan = plan_of(folder, text, "")
    assert (plan.env["PYTHONPATH"], plan.stages[0].argv) == ("/r/job:/opt/verl:/last", ("/opt/verl/train.py",))
    plan = plan_of(folder, text, "/fork")
    assert (plan.env["PYTHONPATH"], plan.stages[0].argv) == ("/r/job:/fork:/last", ("/fork/train.py",))


def test_source_placeholder_names_nothing_without_the_table(folder: Folder) -> None:
    text = JOB.replace('[source]\npackage = "verl"\nversion = "0.9.1"\n', "").replace('["train"]', '["{source}"]')
    with pytest.raises(SpecError, match=r"\{source\} names nothing"):
        plan_of(folder, text, "/fork")


def test_a_parameter_named_source_beside_the_table_is_refused(folder: Folder) -> None:
    with pytest.raises(SpecError, match=r"params\.source: the table \[source\] declares it"):
        plan_of(folder, JOB + '[params]\nsource = { default = "", help = "x" }\n', "")


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_job_takes_a_source(name: str) -> None:
    job = load_job(Project(folder=CHECKOUT), name)
    values = resolve_params(job, "tiny", {"source": "/srv/me/fork"})
    plan = plan_container_run(job, values, "/data", "r", "docker", job.target)
    mount = container_source_path_or_empty("/srv/me/fork")
    words = plan.env["PYTHONPATH"].split(":")
    assert plan.params["source"] == "/srv/me/fork"
    assert plan.paths.source == mount
    own = [word for word in words if word.startswith(("/data/runs/r/", "/opt/"))]
    assert mount in own
    before = own[: own.index(mount)]
    assert all(word.startswith("/data/runs/r/") for word in before), before  # nothing of the image is before it
    text = str(plan.as_json()["stages"])
    assert (f"{mount}/train.py" in text) == (name == "holdem")
    assert "/opt/slime" not in text
