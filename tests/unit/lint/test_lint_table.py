"""The table of drift itself: complete, dated, matched by code that exists, checked like a spec."""

from __future__ import annotations

import contextlib
import datetime
import re

import pytest
from packaging.specifiers import SpecifierSet

from rlbox.config.schema import validate_spec
from rlbox.errors import SpecError
from rlbox.lint.drift import DriftRule, load_drift_rules
from rlbox.lint.rules import CHECKS, lint_text


def rule(**changes: object) -> DriftRule:
    """Return a small rule with `changes`."""
    data = {"id": "a", "kind": "variable", "what": "w", "next": "n", "names": ["A_B"], "source": ["s"]}
    return validate_spec(DriftRule, {**data, "dated": datetime.date(2026, 11, 20), **changes}, "t.toml")


def test_every_check_is_named_by_a_rule_and_the_other_way_round() -> None:
    assert {one.check for one in load_drift_rules() if one.check} == set(CHECKS)


def test_every_row_can_be_matched() -> None:
    rules = load_drift_rules()
    assert len({one.id for one in rules}) == len(rules)
    for one in rules:
        assert one.dated >= datetime.date(2026, 11, 20), one.id
        assert one.check or one.names or one.name or one.command or one.renamed or one.text or one.kind == "image", one
        ranges = [text for text in (one.works, one.warns, one.fails) if text]
        assert bool(ranges) <= bool(one.package), one.id
        for text in ranges:
            SpecifierSet(text)
        for matcher in (one, *one.also):
            assert not matcher.text or "value" in re.compile(matcher.text).groupindex, one.id


def test_the_state_in_a_version() -> None:
    ranged = rule(package="a", works="<2", warns=">=2,<3")
    states = [ranged.judge_pinned_version({"a": version}) for version in ("1.0", "2.5", "3.0", "x")]
    assert states == ["works", "warns", "fails", "unknown"]
    assert (ranged.judge_pinned_version({}), rule().judge_pinned_version({})) == (
        "unknown",
        "fails",
    )
    only = rule(package="a", fails=">=2,<3")
    assert [only.judge_pinned_version(versions) for versions in ({}, {"a": "1"}, {"a": "2.1"})] == [
        "works",
        "works",
        "fails",
    ]


# Texts that a reader with a slow regular expression, or one that goes back, would not come to an end with.
HARD = {
    "quotes": "a \"b'" * 20_000,
    "brackets": "$(" * 20_000,
    "angles": "<your-" * 20_000,
    "one line": "a" * 500_000,
    "pipes": "a|" * 3_000,
    "spaces": " " * 100_000 + "x",
    "marks": "\t>" * 50_000,
    "braces": "${" * 50_000,
    "backslashes": '"' + "\\" * 100_000 + '"',
    "backticks": "`" * 100_000,
    "here-documents": "cat <<A\n" * 5_000,
    "names": "A_B=$C_D$C_D\nC_D=$A_B$A_B\n" * 50 + "ray start --port=$A_B",
    "lists": "A=(-x -y)\nB=(${A[@]} ${A[@]})\nA=(${B[@]} ${B[@]})\n" * 30 + "ray start ${A[@]}",
    "grep": 'grep "[' + "A" * 50_000,
    "address": "a@" + "a" * 100_000,
    "wrappers": "sudo " * 2_000 + "ls",
}


@pytest.mark.allow("processes")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["x.sh", "x.md", "x.yaml", "Dockerfile"])
@pytest.mark.parametrize("kind", HARD)
def test_nothing_hangs(kind: str, name: str) -> None:
    with contextlib.suppress(SpecError):  # not valid YAML
        lint_text(name, HARD[kind], load_drift_rules())
