"""The fault lab: each recipe lies in the half that its name says, and each label is in its log."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest
from fakes import CHECKOUT

sys.path.append(str(CHECKOUT / "tests/faultlab"))

from covered import PAGE, page
from exceptions import bare, raised_lines
from faultrecipe import HALVES, LAB, Recipe, make_recipe, recipes
from interleave import merged, shuffled
from score import Case, cases, judged

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
    line = case.logs[case.label["file"]].split("\n")[case.label["line"] - 1]
    assert bare(line) == case.label["text"]
    assert re.search(case.recipe.root, bare(line))
    assert (case.label["file"], case.label["line"]) in case.accepted


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


def test_a_recipe_with_an_unknown_key_or_without_a_root_is_refused() -> None:
    good = {"title": "t", "cause": "disk-full", "on": ["system"], "run": "true", "root": "x"}
    assert make_recipe("one", good).fatal
    for wrong in ({**good, "rooot": "x"}, {key: value for key, value in good.items() if key != "root"}):
        with pytest.raises(ValueError, match="one: "):
            make_recipe("one", wrong)


def test_exceptions_are_found_with_their_frames_and_chains() -> None:
    log = """step 1
[rank1]: Traceback (most recent call last):
Traceback (most recent call last):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/a.py", line 3, in reduce
  File "/data/job/train.py", line 9, in main
    load()
[rank1]:     raise ValueError("x")
  File "/opt/venv/lib/python3.11/site-packages/datasets/load.py", line 7, in load
    raise FileNotFoundError(path)
[rank1]: ValueError: x
FileNotFoundError: gone

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/data/job/train.py", line 12, in main
    sys.exit(main())
RuntimeError: no rows
"""
    found = [(one.number, one.text, one.function, one.source, one.chain) for one in raised_lines(log)]
    assert found == [
        (10, "ValueError: x", "reduce", 'raise ValueError("x")', 1),
        (11, "FileNotFoundError: gone", "load", "raise FileNotFoundError(path)", 2),
        (18, "RuntimeError: no rows", "main", "sys.exit(main())", 2),
    ]


def _case(recipe: Recipe, log: str, line: int) -> Case:
    return Case(recipe=recipe, env="system", label={"file": "", "line": line, "versions": {}}, logs={"": log})


def test_answers_are_judged_as_the_corpus_judges_them() -> None:
    table = {
        "title": "t",
        "cause": "disk-full",
        "on": ["system"],
        "run": "true",
        "root": "full",
        "also": ["shm-too-small"],
    }
    case = _case(make_recipe("one", {**table, "rank": 1}), "a\nerror: full\n", 2)
    right = {"fatal": True, "cause": "shm-too-small", "first_fatal": {"text": "error: full"}, "rank": 1}
    assert all(judged(case, right).values())
    wrong = judged(case, {**right, "cause": "unknown", "first_fatal": {"text": "a"}, "rank": 0})
    assert wrong == {"fatal": True, "line": False, "cause": False, "not wrong": True, "rank": False}
    healthy = _case(make_recipe("two", {**table, "cause": "none"}), "fine\n", 0)
    assert judged(healthy, {"fatal": True}) == {"quiet": False}


def test_the_readme_names_every_cause_that_has_no_recipe() -> None:
    told = set(re.findall(r"^\| `([\w-]+)` \|", (LAB / "README.md").read_text("utf-8"), re.MULTILINE))
    there = {recipe.cause for recipe in recipes()} | {known for recipe in recipes() for known in recipe.benign}
    assert told & there == set()


def test_lanes_keep_their_order_in_every_interleaving() -> None:
    log = "".join(f"gpu-{node}  | [default{rank}]:{i}\n" for i in range(20) for node in "ab" for rank in range(2))
    lanes = {line.rpartition(":")[0] for line in log.splitlines()}
    told = {shuffled(log, seed) for seed in range(20)}
    assert len(told) == 20
    for one in told:
        assert sorted(one.splitlines()) == sorted(log.splitlines())
        for lane in lanes:
            own = [int(line.rpartition(":")[2]) for line in one.splitlines() if line.startswith(lane)]
            assert own == list(range(20))
    assert merged({"a": "1\n2\n", "b": "3\n"}, 7).count(" | ") == 3


def test_the_page_says_what_is_recorded() -> None:
    assert PAGE.read_text("utf-8") == page(), "python tests/faultlab/covered.py"
