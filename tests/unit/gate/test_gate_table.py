"""The gate table: logs with files and facts, each with the verdict that is due and the rule that decides it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gatebox
import pytest
from gatebox import CASES, fed, judge, plan_case, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbox.gate import http_probe
from rlbox.job.plan import StagePlan

Change = Callable[[StagePlan], StagePlan]
RUN = Path("/nowhere/run")


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = judge(case, tmp_path)
    assert (found.passed, found.kind) == (case["expect"] == "pass", case.get("rule", "")), found
    assert case.get("shows", "") in found.text


def test_the_table_is_large_and_every_kind_of_rule_passes_and_fails() -> None:
    assert len(CASES) >= 60
    fields = dataclasses.fields(plan_case(CASES["p035-one-step"], RUN))
    kinds = {"require", "forbid", "benign", "files", "metrics", "probes", "exit_codes", "ordered"}
    assert kinds <= {field.name for field in fields}
    for kind in kinds:
        assert {case["expect"] for case in CASES.values() if kind in case["gate"]} == {"pass", "fail"}, kind
    decided = {case.get("rule", "") for case in CASES.values()}
    assert decided == {"", "require", "forbid", "within", "metric", "exit", "ray", "file", "probe"}


@settings(max_examples=12)
@given(st.integers(0, 2**32))
def test_chunks_do_not_matter(seed: int) -> None:
    dice = random.Random(seed)

    def cut(data: bytes) -> Iterator[bytes]:
        bounds = sorted({0, len(data), *(dice.randrange(len(data) + 1) for _ in range(dice.randrange(9)))})
        return (data[a:b] for a, b in pairwise(bounds))

    for name, case in dice.sample(sorted(CASES.items()), 40):
        stage = plan_case(case, RUN)
        assert fed(case, stage, RUN, cut) == fed(case, stage, RUN, whole), name


@pytest.mark.parametrize(
    "name", ["bar-loss-nan-overwritten", "two-actors-in-one-line", "crlf-log", "p033-after-success"]
)
def test_bytes_one_by_one(name: str) -> None:
    case = CASES[name]
    stage = plan_case(case, RUN)
    assert fed(case, stage, RUN, lambda data: (data[i : i + 1] for i in range(len(data)))) == fed(
        case, stage, RUN, whole
    )


def _without(rules: str) -> Change:
    return lambda stage: dataclasses.replace(stage, **{rules: ()})


def _with(rules: str, **fields: Any) -> Change:
    def change(stage: StagePlan) -> StagePlan:
        return dataclasses.replace(
            stage, **{rules: tuple(rule.model_copy(update=fields) for rule in getattr(stage, rules))}
        )

    return change


MUTANTS: dict[str, Change] = {
    "require": _without("require"),
    "forbid": _without("forbid"),
    "benign": _without("benign"),
    "files": _without("files"),
    "metrics": _without("metrics"),
    "probes": _without("probes"),
    "exit codes": lambda stage: dataclasses.replace(stage, exit_codes=tuple(range(-64, 256))),
    "other exit codes": lambda stage: dataclasses.replace(stage, exit_codes=(0,)),
    "order": lambda stage: dataclasses.replace(stage, ordered=False),
    "count": _with("require", count=1),
    "at_most of lines": _with("require", at_most=None),
    "within_s": _with("require", within_s=None),
    "after of require": _with("require", after=""),
    "after of forbid": _with("forbid", after=""),
    "after of benign": _with("benign", after=""),
    "until": _with("forbid", until=""),
    "log of require": _with("require", log="stage"),
    "log of forbid": _with("forbid", log="stage"),
    "min_bytes": _with("files", min_bytes=0),
    "manifest": _with("files", manifest=False),
    "format": _with("files", format=""),
    "count of files": _with("files", count=1),
    "newer": _with("files", newer=False),
    "settled_s": _with("files", settled_s=0.0),
    "trend": _with("metrics", trend=""),
    "within_steps": _with("metrics", within_steps=None),
    "at_least": _with("metrics", at_least=None),
    "at_most of metrics": _with("metrics", at_most=None),
    "when": _with("metrics", when="end"),
    "finite": _with("metrics", finite=False),
    "finite always": _with("metrics", finite=True),
    "steps_rise": _with("metrics", steps_rise=False),
    "points": _with("metrics", points=1),
    "where": _with("metrics", where={}),
    "status": _with("probes", status=200),
    "contains": _with("probes", contains=""),
    "json_path": _with("probes", json_path="", equals=None),
    "equals": _with("probes", equals=None),
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, StagePlan]]:
    """All cases, planned once, each with a run directory of its own."""
    folder = tmp_path_factory.mktemp("gates")
    return {name: (folder / name, plan_case(case, folder / name)) for name, case in CASES.items()}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_dropped_is_noticed(name: str, planned: dict[str, tuple[Path, StagePlan]]) -> None:
    for case, (run, stage) in planned.items():
        changed = MUTANTS[name](stage)
        if changed != stage:
            found, due = judge(CASES[case], run, stage=changed), CASES[case]
            if (found.passed, found.kind) != (due["expect"] == "pass", due.get("rule", "")):
                return
    pytest.fail(f"no case notices that {name} is gone")


def test_an_unseen_error_in_an_answer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_probe, "_error_in", lambda data, text: "")
    assert judge(CASES["probe-200-with-error"], tmp_path / "a").passed
    assert judge(CASES["probe-unhealthy"], tmp_path / "b").passed


def test_an_unseen_ray_status_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {**CASES["p040-ray-failed"], "ray": {"status": "SUCCEEDED", "code": 0}}
    assert judge(changed, tmp_path).passed
    monkeypatch.setattr(gatebox, "KNOWN", ())
    assert not judge(CASES["known-benign-line"], tmp_path / "b").passed
