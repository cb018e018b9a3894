"""The fault lab: each recipe lies in the half that its name says, and each label is in its log."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest
from fakes import CHECKOUT

sys.path.append(str(CHECKOUT / "tests/faultlab"))

from exceptions import bare
from faultrecipe import HALVES, LAB, recipes
from score import Case, cases

FAULTS, CAUSES, HEALTHY, VERSIONS, CASCADES = 120, 70, 30, 2, 40
ALL = list(cases())


def test_each_recipe_lies_in_the_half_of_its_name() -> None:
    assert [recipe.name for half in HALVES for recipe in recipes(half) if recipe.half != half] == []
    halves = Counter(recipe.half for recipe in recipes())
    assert min(halves.values()) > 0.4 * halves.total()


def test_the_lab_is_large_enough() -> None:
    faults = {case.recipe.name for case in ALL if case.recipe.fatal}
    causes = {case.recipe.cause for case in ALL} | {known for case in ALL for known in case.recipe.benign}
    assert len(faults) >= FAULTS
    assert len(causes - {"unknown", "none"}) >= CAUSES
    assert sum(not case.recipe.fatal for case in ALL) >= HEALTHY
    assert sum(case.recipe.cascade for case in ALL) >= CASCADES
    alone = [recipe for recipe in recipes() if not recipe.needs and recipe.on != ("system",)]
    twice = [recipe for recipe in alone if len(recipe.on) >= VERSIONS]
    assert len(twice) > 0.75 * len(alone)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.recipe.name}-{case.env}")
def test_each_label_is_a_line_of_its_log(case: Case) -> None:
    if not case.recipe.fatal:
        assert case.label["line"] == 0
        return
    file, number = case.label.get("file", ""), case.label["line"]
    assert re.search(case.recipe.root, bare(case.logs[file].split("\n")[number - 1]))
    assert (file, number) in case.accepted


def test_no_log_names_a_place_of_the_machine_that_recorded_it() -> None:
    private = re.compile(
        rf"/ro{''}ot/(?!\.(?:cache/uv|cargo)\b)|/wo{''}rk/|/ho{''}me/\w|py{''}pi\.org|deb\.debian{''}\.org"
    )
    found = [
        (case.recipe.name, case.env, hit.group())
        for case in ALL
        for log in case.logs.values()
        if (hit := private.search(log))
    ]
    assert found == []


def test_the_readme_names_every_cause_that_has_no_recipe() -> None:
    told = set(re.findall(r"^\| `([\w-]+)` \|", (LAB / "README.md").read_text("utf-8"), re.MULTILINE))
    there = {recipe.cause for recipe in recipes()} | {known for recipe in recipes() for known in recipe.benign}
    assert told & there == set()
