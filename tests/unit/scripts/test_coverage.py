"""Every demand of the field is met by a fix, a lint rule or a check, or says why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.fixes.fix import Fix
from scripts.docs.coverage import Demand, coverage_problems, coverage_rows, fix_gap, state_counts, unknown_numbers
from scripts.docs.fix_docs import COVERAGE, Catalogue, fix_pages, lint_rules, load_catalogue

FIX = {
    "id": "a-fix",
    "title": "all is well",
    "title_zh": "一切正常",
    "why": "Because.",
    "source": ["seed 000:1"],
    "covers": ["P001"],
    "remedy": "Do it.",
    "remedy_zh": "去做。",
    "bake": {"env": {"NAME": "1"}},
    "check": {"run": "true"},
}


def fix(**changes: object) -> Fix:
    data = {key: value for key, value in {**FIX, **changes}.items() if value is not None}
    return validate_spec(Fix, data, "a-fix.toml")


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue(Project(folder=CHECKOUT), CHECKOUT / "tests/faults")


def test_all_demands_are_there(catalogue: Catalogue) -> None:
    numbers = [f"P{number:03}" for number in range(1, 202)] + [f"B{number:03}" for number in range(1, 115)]
    assert list(catalogue.demands) == numbers
    assert len({demand.title for demand in catalogue.demands.values()}) == len(numbers)


def test_nothing_is_open_and_no_reason_is_stale(catalogue: Catalogue) -> None:
    assert list(coverage_problems(catalogue.rows, catalogue.faults)) == []


def test_every_number_that_is_covered_exists(catalogue: Catalogue) -> None:
    fixes = {fix.id: fix.covers for fix in catalogue.fixes}
    assert unknown_numbers(catalogue.demands, fixes, lint_rules()) == ()


def test_fixes_heal_causes_that_exist(catalogue: Catalogue) -> None:
    healed = [(fix.id, cause) for fix in catalogue.fixes for cause in fix.heals]
    assert [row for row in healed if not catalogue.causes.family_of(row[1])] == []


def test_what_doctor_finds_exists(catalogue: Catalogue) -> None:
    """Ids stand in its code as they are, or with a name in front: `f"{name}-full"`."""
    texts = [path.read_text("utf-8") for path in (CHECKOUT / "rlbox/doctor").glob("*.py")]
    known = {hit for text in texts for hit in re.findall(r'"([a-z0-9-]+)"', text)}
    ends = tuple(hit for text in texts for hit in re.findall(r'f"\{name\}(-[a-z-]+)"', text))
    asked = {name for demand in catalogue.demands.values() for name in demand.doctor}
    assert [name for name in sorted(asked) if name not in known and not name.endswith(ends)] == []


def absent(tests: Mapping[str, str]) -> list[str]:
    """Return those demands whose test, `FILE::FUNCTION`, is not in the repository."""

    def there(test: str) -> bool:
        path, _, function = test.partition("::")
        file = CHECKOUT / path
        return file.is_file() and bool(re.search(rf"^def {function}\(", file.read_text("utf-8"), re.M))

    return [f"{number}: {test}" for number, test in tests.items() if not there(test)]


def test_every_test_that_is_named_is_there(catalogue: Catalogue) -> None:
    named = {number: demand.test for number, demand in catalogue.demands.items() if demand.test}
    assert len(named) > 55
    assert absent(named) == []


@pytest.mark.parametrize(
    "made_up",
    ["tests/unit/scripts/test_coverage.py::test_of_nothing", "tests/unit/scripts/test_none.py::test_of_nothing"],
)
def test_a_test_that_is_made_up_is_noticed(made_up: str) -> None:
    own = "tests/unit/scripts/test_coverage.py::test_a_test_that_is_made_up_is_noticed"
    assert absent({"P001": own, "P002": made_up}) == [f"P002: {made_up}"]


def test_what_never_ran_for_real_counts_as_not_covered(catalogue: Catalogue) -> None:
    """The trainers of the five notes never ran with the versions of their targets, whatever fixes go with them."""
    counts = state_counts(catalogue.rows)
    assert sum(counts.values()) == len(catalogue.demands)
    page = fix_pages(catalogue, Project(folder=CHECKOUT).template_dirs())[COVERAGE]
    assert f"{counts['works'] + counts['changed']} of {len(catalogue.demands)} are covered." in page
    first_steps = {"P034", "P036", "P072", "P084", "P091", "P117", "P139", "P167", "P174", "P182"}
    assert {catalogue.demands[number].state for number in first_steps} == {"rendered only"}
    assert [row.number for row in catalogue.rows if row.demand.state == "missing" and row.demand.test] == []


def test_a_fault_test_belongs_to_a_fix(catalogue: Catalogue) -> None:
    assert catalogue.faults - {fix.id for fix in catalogue.fixes} == set()


TESTED, NONE = frozenset({"a-fix"}), frozenset[str]()
UNNOTICED = "works, but no fix, no check and no test would notice"
ENVIRONMENT = Demand(title="a demand", environment=True)
OTHER = Demand(title="a demand")
FOUND = Demand(title="a demand", environment=True, doctor=("port-taken",))
LINTED = Demand(title="a demand", environment=True, reason="lint only", test="tests/a.py::test_a")
TRIED = Demand(title="a demand", environment=True, test="tests/a.py::test_a")
RENDERED = Demand(title="a demand", environment=True, state="rendered only", reason="never ran")


@pytest.mark.parametrize(
    ("demand", "fixes", "rules", "faults", "said"),
    [
        (ENVIRONMENT, [fix()], {}, TESTED, ""),
        (ENVIRONMENT, [fix(untested="needs a GPU")], {}, NONE, ""),
        (ENVIRONMENT, [fix()], {}, NONE, f"{UNNOTICED} (fix a-fix has no fault test"),
        (ENVIRONMENT, [fix(check=None)], {}, TESTED, f"{UNNOTICED} (fix a-fix has no check)"),
        (ENVIRONMENT, [], {"rule": ["P001"]}, NONE, UNNOTICED),
        (LINTED, [], {"r": ["P001"]}, NONE, ""),
        (LINTED, [fix()], {}, TESTED, ""),
        (TRIED, [], {}, NONE, ""),
        (RENDERED, [], {}, NONE, ""),
        (RENDERED, [fix()], {}, TESTED, ""),
        (Demand(title="t", state="missing"), [fix()], {}, TESTED, "missing, and no reason is given"),
        (
            Demand(title="t", state="rendered only", reason="r", test="tests/a.py::test_a"),
            [],
            {},
            NONE,
            "rendered only, so no test shows it: tests/a.py::test_a",
        ),
        (Demand(title="t", state="changed", reason="r"), [], {}, NONE, UNNOTICED.replace("works", "changed")),
        (FOUND, [], {}, NONE, ""),
        (OTHER, [fix(check=None, bake=None)], {}, NONE, ""),
        (OTHER, [], {"rule": ["P001"]}, NONE, ""),
        (OTHER, [], {"rule": ["P002"]}, NONE, UNNOTICED),
        (Demand(title="t", reason="planner"), [], {"rule": ["P001"]}, NONE, "covered, so its reason is stale"),
        (Demand(title="t", reason="planner"), [], {}, NONE, UNNOTICED),
    ],
)
def test_what_is_wrong_with_a_row(
    demand: Demand, fixes: list[Fix], rules: dict[str, list[str]], faults: frozenset[str], said: str
) -> None:
    problems = coverage_problems(coverage_rows({"P001": demand}, fixes, rules), faults)
    assert len(problems) == bool(said)
    assert not said or problems[0].startswith(f"P001: {said}")


def test_what_most_users_meet_needs_a_fix() -> None:
    (row,) = coverage_rows({"B029": Demand(title="t", test="tests/a.py::test_a")}, [], {})
    assert coverage_problems([row], NONE) == ("B029: most users meet it, and no fix covers it",)
    assert coverage_problems([replace(row, number="B030")], NONE) == ()


def test_a_refusal_stands_for_a_check() -> None:
    refuse = {"refuse": [{"if": "true", "says": "no", "next": "do"}]}
    assert fix_gap(fix(check=None, bake=refuse), TESTED) == ""
    assert fix_gap(fix(check=None, bake=None, benign=True), NONE) == ""


def test_a_number_that_does_not_exist() -> None:
    assert unknown_numbers({"P001": OTHER}, {"a-fix": ("P001", "P999")}, {"rule": ("B115",)}) == (
        "a-fix: covers P999, which is no demand",
        "rule: covers B115, which is no demand",
    )
