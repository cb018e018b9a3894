"""Parameters: types, units, choices, profiles over profiles, `--set`, and what a resumed run changes."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import Folder, load_cases

from rlbox.errors import SpecError
from rlbox.job.job import Job, load_job
from rlbox.job.param import merge_profiles
from rlbox.job.params import (
    ParamValues,
    build_undated_overrides_entry,
    parse_set_options_last_wins,
    resolve_default_params,
    resolve_params,
)
from rlbox.job.plan import ProcessPaths, RunPlan, plan_run, replan_stages_for_resume

CASES = load_cases("job", "test_params")
JOB = CASES["JOB"]
PATHS = ProcessPaths(run="/d/runs/j-1", job="/d/runs/j-1/job", data="/d", python="/py")


@pytest.fixture
def job(folder: Folder) -> Job:
    folder.job("seed", JOB)
    return load_job(folder.project, "seed")


def planned(job: Job, values: ParamValues) -> RunPlan:
    return plan_run(job, values, PATHS, run_id="j-1", place="docker", target="local", secrets=("WANDB_API_KEY",))


def test_the_layers_and_where_values_came_from(job: Job) -> None:
    values = resolve_params(job, ("full", "smoke"), {"timeout": "90min", "offload": "yes"})
    assert values == ParamValues(
        profile="full+smoke",
        params={
            "rollouts": 2,
            "mem_frac": 0.7,
            "concurrency": 128,
            "dynamic": True,
            "timeout": 5400,
            "cache": 76293.9453125,
            "backend": "flash",
            "data": "/data/x",
            "offload": True,
            "save": "{run}/ckpt",
            "load_optimizer": True,
        },
    )
    assert {name: origin for name, origin in values.origins.items() if origin != "default"} == {
        "rollouts": "profile smoke",
        "mem_frac": "profile full",
        "concurrency": "profile full",
        "dynamic": "profile full",
        "timeout": "--set",
        "data": "profile base",
        "offload": "--set",
    }


@pytest.mark.parametrize(("names", "order"), CASES["the_one_rule_of_profiles"])
def test_the_one_rule_of_profiles(job: Job, names: list[str], order: dict[str, str]) -> None:
    found = {name: origin for name, (_, origin) in merge_profiles(job.profiles, names).items()}
    assert {name: origin for name, origin in found.items() if name in ("data", "rollouts")} == order


def test_words_of_the_command(job: Job) -> None:
    train = planned(job, resolve_params(job, "full", {"timeout": "2h", "offload": "1"})).stages[1]
    cache = "76293.9453125"
    assert train.argv == ("train", "--offload", "--mem=0.7", "--timeout", "7200", cache, "/d/runs/j-1/ckpt", "/data/x")
    assert train.env == {"TRY": "1"}


def test_what_was_typed_stands_for_itself(job: Job) -> None:
    train = planned(job, resolve_params(job, (), {"data": "{run}/x", "save": "{data}"})).stages[1]
    assert train.argv[-2:] == ("{data}", "{run}/x")


@pytest.mark.parametrize(("settings", "lines"), CASES["everything_that_is_wrong_at_once"])  # fmt: skip
def test_everything_that_is_wrong_at_once(job: Job, settings: dict[str, str], lines: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_params(job, (), settings)
    assert caught.value.what.splitlines() == lines


def test_profiles_that_are_not_there(job: Job) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_params(job, ("smok", "full", "ful"), {})
    assert str(caught.value) == (
        "job seed has no profile 'smok' and 'ful'\n  next:  choose one of: base, debug, full, smoke"
    )


def test_settings_of_a_command_line() -> None:
    assert parse_set_options_last_wins(["a=1", "b=x=y", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}
    with pytest.raises(SpecError, match="--set rounds: no '=' in it"):
        parse_set_options_last_wins(["rounds"])


def test_a_resumed_run(job: Job) -> None:
    """Seed 000, pit 7: weights and progress are restored, the optimizer's state is not, and the run says so (P049)."""
    first = planned(job, resolve_params(job, "full", {}))
    again = replan_stages_for_resume(job, first, {"train": 2, "eval": 1})
    assert again.stages[0] == first.stages[0]
    assert again.stages[1].argv == (
        *("train", "--no-load-optim", "--mem=0.7", "--timeout", "600", "76293.9453125", "/d/runs/j-1/ckpt", "/data/x"),
        *("--load", "/d/runs/j-1/ckpt", "--attempt=2"),
    )
    assert (again.stages[1].env, again.stages[1].attempt) == ({"TRY": "2"}, 2)
    assert again.stages[2] == first.stages[2]
    assert (again.params["load_optimizer"], again.origins["load_optimizer"]) == (False, "resume")
    said = "weights and progress only: optimizer state lost (load_optimizer = false)"
    assert again.notes == (f"train, attempt 2: {said}",)
    assert (again.secrets, again.run_id, again.paths) == (first.secrets, "j-1", PATHS)


def test_resumed_twice_and_told_otherwise(job: Job) -> None:
    first = planned(job, resolve_params(job, "full", {"timeout": "1h"}))
    second = replan_stages_for_resume(job, first, {"train": 2, "eval": 1})
    third = replan_stages_for_resume(job, second, {"train": 3, "eval": 1}, {"load_optimizer": "true", "timeout": "2h"})
    assert third.stages[1].argv[:4] == ("train", "--mem=0.7", "--timeout", "7200")
    assert third.stages[1].argv[-1] == "--attempt=3"
    assert len(third.notes) == 2
    entry = build_undated_overrides_entry(
        ParamValues(profile=third.profile, params=third.params, origins=third.origins),
        {"timeout": "2h"},
        previous_params=second.params,
        notes=third.notes[1:],
        resume=True,
    )
    assert entry["changed"] == {
        "timeout": {"before": 3600, "now": 7200, "origin": "--set"},
        "load_optimizer": {"before": False, "now": True, "origin": "--set"},
    }


@pytest.mark.parametrize("settings", [{"lr": "1"}, {"timeout": "soon"}])
def test_a_resume_with_wrong_settings(job: Job, settings: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="--set"):
        replan_stages_for_resume(job, planned(job, resolve_params(job, "full", {})), {"train": 2}, settings)


def test_a_resume_of_a_job_that_has_other_stages_now(job: Job, folder: Folder) -> None:
    first = planned(job, resolve_params(job, "full", {}))
    folder.job("seed", JOB.replace('name = "eval"', 'name = "judge"'))
    with pytest.raises(SpecError, match=r"job seed no longer has the stages of run j-1: prepare, train, eval"):
        replan_stages_for_resume(load_job(folder.project, "seed"), first, {"train": 2})


def test_what_is_recorded_of_a_new_run(job: Job) -> None:
    values = resolve_params(job, "smoke", {"dynamic": "on"})
    entry = build_undated_overrides_entry(
        values, {"dynamic": "on"}, previous_params=resolve_default_params(job), first_stage="train", force=True
    )
    assert entry == {
        "resume": False,
        "profile": "smoke",
        "set": {"dynamic": "on"},
        "from": "train",
        "force": True,
        "changed": {
            "dynamic": {"before": False, "now": True, "origin": "--set"},
            "data": {"before": None, "now": "/data/x", "origin": "profile base"},
        },
        "notes": [],
    }
