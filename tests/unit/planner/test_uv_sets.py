"""The solver beside uv, which `scripts/compat_sets.py` asks: it never says that a set fits which uv refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import CASES

from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables_and_named_lists
from rlbox.planner.stack_facts import StackProblem, build_stack_problem, load_compat_table
from rlbox.planner.stack_solver import solve
from rlbox.target.target import DEFAULTS, Target

SETS = json.loads((CASES / "planner/uv_sets.json").read_text("utf-8"))


def problem(packages: list[str]) -> StackProblem:
    own: dict[str, Any] = {"name": "t", "title": "t", "base": {"bootstrap": "debian:bookworm"}, "disk": {"mount": "/d"}}
    own |= {"python": {"version": SETS["python"], "platform": SETS["platform"]}}
    own |= {"stack": [{"name": "s", "packages": packages}]}
    return build_stack_problem(
        load_compat_table(), validate_spec(Target, merge_tables_and_named_lists(load_toml(DEFAULTS), own), "t"), None
    )


@pytest.mark.parametrize("row", SETS["sets"], ids=lambda row: " ".join(row["packages"]))
def test_the_solver_says_what_uv_says(row: dict[str, Any]) -> None:
    asked = problem(row["packages"])
    fits = solve(asked.candidates(asked.constraints), asked.facts) is not None and not asked.unknown
    assert fits is (row["uv"] == "fits")
