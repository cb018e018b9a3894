"""The table of what fits together: well formed, and every fact changes a verdict."""

from __future__ import annotations

import json
import re

import pytest
from packaging.version import Version

from rlbox.planner.requirements import REQUIREMENTS
from rlbox.planner.stack_facts import CompatTable, load_compat
from rlbox.planner.stack_solver import Fact, parse_condition, solve

TABLE = load_compat()
FACTS = {fact.id: fact for fact in TABLE.table_facts()}


def test_every_fact_has_a_source() -> None:
    assert [fact.id for fact in FACTS.values() if len(fact.source) < 8] == []


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_a_fact_can_hold_and_can_be_broken(fact: Fact) -> None:
    """Some versions fit it while its conditions hold, and some do not: a fact that forbids nothing is dead."""
    named = {condition.name for condition in fact.conditions()}
    domains = {name: ("", *TABLE.all_versions[name], "0.1", "999") for name in named}
    under = {
        name: tuple(v for v in versions if all(c.holds(v) for c in fact.when if c.name == name))
        for name, versions in domains.items()
    }
    assert all(under.values()), "its conditions hold for no version of the table"
    assert solve(under, [fact]) is not None
    worst = {
        name: next((v for v in versions if not _helps(fact, name, v)), versions[0]) for name, versions in under.items()
    }
    assert solve({name: (version,) for name, version in worst.items()}, [fact]) is None


def _helps(fact: Fact, name: str, version: str) -> bool:
    return any(c.holds(version) for row in fact.satisfying_alternatives for c in row if c.name == name)


@pytest.mark.parametrize(
    ("text", "version", "holds"),
    [
        ("torch", "2.9.0", True),
        ("torch", "", False),
        ("!torch", "", True),
        ("!torch", "2.9.0", False),
        ("torch==2.9.*", "2.9.1", True),
        ("torch>=2.7,<2.9", "2.9.0", False),
        ("torch==2.9.0", "2.9.0+cu129", True),
        ("vllm<=0.8.5", "0.8.5.post1", False),
        ("arch==12.0", "12.0", True),
    ],
)
def test_conditions(text: str, version: str, holds: bool) -> None:
    assert parse_condition(text).holds(version) is holds


@pytest.mark.parametrize("text", ["", "Torch", "!torch==2", "torch=2", "torch>=", "a b"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match=r"condition|Invalid"):
        parse_condition(text)


def test_a_table_says_what_is_wrong_with_it() -> None:
    row = {"id": "x", "when": ["torch"], "needs": ["cuda"], "source": "a source"}
    with pytest.raises(ValueError, match="two facts have the id 'x'"):
        CompatTable.model_validate({"versions": {"torch": ["1"], "cuda": ["1"]}, "torch": (), "fact": (row, row)})
    with pytest.raises(ValueError, match="nothing is said of 'cuda'"):
        CompatTable.model_validate({"versions": {"torch": ["1"]}, "torch": (), "fact": (row,)})
    with pytest.raises(ValueError, match="exactly one of needs and any"):
        CompatTable.model_validate({"versions": {}, "torch": (), "fact": ({**row, "any": [["cuda"]]},)})


def test_the_generated_file_is_well_formed() -> None:
    table = json.loads(REQUIREMENTS.read_text("utf-8"))
    assert (table["schema"], bool(re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"]))) == (1, True)
    assert list(table["packages"]) == sorted(table["packages"])
    for name, row in table["packages"].items():
        versions = row["versions"].split()
        assert sorted(versions, key=Version, reverse=True) == versions, name
        assert {one for release in row["releases"] for one in release["versions"].split()} <= set(versions), name
    ids = [fact.id for fact in TABLE.table_and_metadata_facts()]
    assert sorted(one for one in set(ids) if ids.count(one) > 1) == []
