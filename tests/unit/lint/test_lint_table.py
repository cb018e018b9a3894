"""The table of drift itself: complete, dated, matched by code that exists, checked like a spec."""

from __future__ import annotations

import datetime

import pytest

from rlbox.config.schema import validate_spec
from rlbox.errors import SpecError
from rlbox.lint.drift import Drift, DriftRule, load_drift
from rlbox.lint.rules import CHECKS, lint_text


def rule(**changes: object) -> DriftRule:
    """Return a small rule with `changes`."""
    data = {
        "id": "a",
        "kind": "variable",
        "what": "w",
        "next": "n",
        "names": ["A_B"],
        "source": ["s"],
        "dated": datetime.date(2026, 11, 20),
    }
    return validate_spec(Drift, {"rule": [{**data, **changes}]}, "t.toml").rule[0]


def test_every_check_is_named_by_a_rule_and_the_other_way_round() -> None:
    assert {one.check for one in load_drift() if one.check} == set(CHECKS)


def test_every_row_has_a_date_a_source_and_a_form_that_works() -> None:
    for one in load_drift():
        assert one.next, one.id
        assert one.dated >= datetime.date(2026, 11, 20), one.id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"names": []}, "give names, command, renamed or check: nothing would be found"),
        ({"works": "<1"}, "give package together with works, warns and fails"),
        ({"value": "("}, "no regular expression"),
        ({"package": "a", "works": "new"}, "Invalid specifier"),
        ({"kind": "other"}, "is not one of"),
        ({"dat": 1}, "unknown key"),
    ],
)
def test_a_row_that_cannot_be_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as error:
        rule(**changes)
    assert said in error.value.what


def test_two_rows_of_one_name_are_refused() -> None:
    one = rule().model_dump()
    with pytest.raises(SpecError, match="two rules have the id 'a'"):
        validate_spec(Drift, {"rule": [one, one]}, "t.toml")


def test_the_state_in_a_version() -> None:
    ranged = rule(package="a", works="<2", warns=">=2,<3")
    states = [ranged.judge_versions({"a": version}) for version in ("1.0", "2.5", "3.0", "x")]
    assert states == ["works", "warns", "fails", "unknown"]
    assert (ranged.judge_versions({}), rule().judge_versions({})) == ("unknown", "fails")
    only = rule(package="a", fails=">=2,<3")
    assert [only.judge_versions(versions) for versions in ({}, {"a": "1"}, {"a": "2.1"})] == ["works", "works", "fails"]


# Texts that a reader with a slow regular expression, or one that goes back, would not come to an end with.
HARD = {
    "quotes": "a \"b'" * 20_000,
    "brackets": "$(" * 20_000,
    "angles": "<your-" * 20_000,
    "one line": "a" * 500_000,
    "pipes": "a|" * 10_000,
    "spaces": " " * 100_000 + "x",
    "marks": "\t>" * 50_000,
    "braces": "${" * 50_000,
    "backslashes": '"' + "\\" * 100_000 + '"',
    "backticks": "`" * 100_000,
    "here-documents": "cat <<A\n" * 5_000,
    "names": "A_B=$C_D$C_D\nC_D=$A_B$A_B\n" * 50 + "ray start --port=$A_B",
    "lists": "A=(-x -y)\nB=(${A[@]} ${A[@]})\nA=(${B[@]} ${B[@]})\n" * 30 + "ray start ${A[@]}",
    "grep": 'grep "[' + "A" * 50_000,
    "table": "|a|b|\n|-|-|\n" + "|" * 50_000,
    "address": "a@" + "a" * 100_000,
    "wrappers": "sudo " * 2_000 + "ls",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["x.sh", "x.md", "x.yaml", "Dockerfile"])
@pytest.mark.parametrize("kind", HARD)
def test_nothing_hangs(kind: str, name: str) -> None:
    lint_text(name, HARD[kind], load_drift())
