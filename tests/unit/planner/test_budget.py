"""Hours and cost of a job's stages: measured, scaled, assumed."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.job.job import Job, load_job
from rlbox.job.params import ParamValues, resolve_params
from rlbox.planner.fit import (
    StageHours,
    StageMeasurement,
    TotalHourlyPrice,
    budget_to_json,
    estimate_stage_hours,
    format_budget_lines,
    get_vast_max_price,
    parse_price_range,
    sum_known_hours,
)
from rlbox.target.target import load_target

PROJECT = Project(folder=CHECKOUT)


def sft(**settings: str) -> tuple[Job, ParamValues]:
    job = load_job(PROJECT, "sft")
    return job, resolve_params(job, (), settings)


def measurement(seconds: float = 7200.0, **params: str) -> StageMeasurement:
    return StageMeasurement(run="sft-1", stage="train", seconds=seconds, params=sft(**params)[1].params)


def train(hours: tuple[StageHours, ...]) -> StageHours:
    return next(row for row in hours if row.stage == "train")


def test_hours_without_a_run_are_the_marked_assumption() -> None:
    rows = estimate_stage_hours(*sft(), 0.0, ())
    assert (train(rows).low, train(rows).high, train(rows).measured) == (2.0, 4.0, False)
    assert all("assumption" in row.basis for row in rows)
    low, high = sum_known_hours(rows)
    assert (3.0 < low < 3.2, 6.2 < high < 6.4) == (True, True)


def test_hours_of_the_same_parameters_are_measured() -> None:
    row = train(estimate_stage_hours(*sft(), 0.0, (measurement(model="Qwen/Qwen2.5-Coder-7B-Instruct"),)))
    assert (row.low, row.high, row.measured, row.basis) == (2.0, 2.0, True, "measured, run sft-1")


@pytest.mark.parametrize(("name", "value"), [("model", "me/other-7b"), ("max_length", "2048"), ("epochs", "6")])
def test_hours_of_other_parameters_do_not_count(name: str, value: str) -> None:
    other = (measurement(**{name: value}),)
    assert not train(estimate_stage_hours(*sft(), 0.0, other)).measured


def test_hours_of_a_job_without_assumption_are_not_known() -> None:
    job = load_job(PROJECT, "xdan")
    rows = estimate_stage_hours(job, resolve_params(job, (), {}), 0.0, ())
    assert {row.low for row in rows} == {None}
    assert format_budget_lines(rows, None)[-1].startswith("total hours: not known")


def test_cost_is_hours_times_price() -> None:
    """Six hours at 1.60 to 2.40 dollars, and 0.10 for the disk."""
    rows = (StageHours(stage="all", low=6.0, high=6.0, basis="measured"),)
    price = parse_price_range("1.70-2.50")
    assert format_budget_lines(rows, price)[-2:] == [
        "total hours: 6.00",
        "cost: $10.20-15.00 at $1.70-2.50 an hour (--price)",
    ]
    found = budget_to_json(rows, price)
    assert (round(found["cost"]["low"], 2), found["cost"]["high"], found["complete"]) == (10.2, 15.0, True)


def test_unknown_stage_is_left_out_of_the_total() -> None:
    rows = (
        StageHours(stage="train", low=1.0, high=2.0, basis=""),
        StageHours(stage="judge", low=None, high=None, basis=""),
    )
    assert "without" in format_budget_lines(rows, None)[-2]
    assert budget_to_json(rows, None)["complete"] is False


def test_price_of_a_rented_target_is_its_ceiling() -> None:
    ceiling = get_vast_max_price(load_target(PROJECT, "vast-5090").target)
    assert ceiling == TotalHourlyPrice(2.5, 2.5, "the target's ceiling, disk included")
    assert get_vast_max_price(load_target(PROJECT, "hopper").target) is None


@pytest.mark.parametrize("text", ["x", "2-1", "-1", "1.6-", "nan"])
def test_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="invalid --price"):
        parse_price_range(text)
