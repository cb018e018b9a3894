"""The gate table: logs with files and facts, each with the verdict that is due and the rule that decides it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from gatebox import CASES, fed, judge, plan_case, whole
from hypothesis import given, settings
from hypothesis import strategies as st

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
