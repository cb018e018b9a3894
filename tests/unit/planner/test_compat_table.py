"""The table of what fits together: well formed, and every fact changes a verdict."""

from __future__ import annotations

import json
import lzma
import re

import pytest
from packaging.version import Version

from rlbox.config.toml_files import load_toml
from rlbox.planner.stack_facts import COMPAT, REQUIREMENTS, is_from_package_metadata, load_compat_table
from rlbox.planner.stack_solver import CompatFact, parse_condition, solve

TABLE = load_compat_table()
FACTS = {fact.id: fact for fact in TABLE.facts if not is_from_package_metadata(fact)}


def test_every_fact_has_a_source() -> None:
    assert [fact.id for fact in FACTS.values() if len(fact.source) < 8] == []


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_a_fact_can_hold_and_can_be_broken(fact: CompatFact) -> None:
    """Some versions fit it while its conditions hold, and some do not: a fact that forbids nothing is dead."""
    named = {condition.name for condition in fact.when_and_alternative_conditions()}
    domains = {name: ("", *TABLE.versions[name], "0.1", "999") for name in named}
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


def _helps(fact: CompatFact, name: str, version: str) -> bool:
    return any(c.holds(version) for row in fact.alternatives for c in row if c.name == name)


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


def test_the_table_is_well_formed() -> None:
    ids = [fact.id for fact in TABLE.facts]
    assert sorted(one for one in set(ids) if ids.count(one) > 1) == []
    named = {condition.name for fact in TABLE.facts for condition in fact.when_and_alternative_conditions()}
    assert sorted(named - set(TABLE.versions)) == []
    assert [row["id"] for row in load_toml(COMPAT)["fact"] if len({"any", "needs", "same"} & row.keys()) != 1] == []
    # the solver keeps one condition of `when` for each name
    assert [fact.id for fact in TABLE.facts if len({one.name for one in fact.when}) < len(fact.when)] == []


def test_the_generated_file_is_well_formed() -> None:
    table = json.loads(lzma.decompress(REQUIREMENTS.read_bytes()))
    assert (table["schema"], bool(re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"]))) == (2, True)
    for name, text in table["versions"].items():
        versions = text.split()
        assert sorted(versions, key=Version, reverse=True) == versions, name
        assert set(table["versions_without_facts"].get(name, "").split()) <= set(versions), name


def test_a_kernel_that_no_fact_binds_to_torch_is_not_known() -> None:
    facts = load_compat_table().versions_with_facts
    assert {"0.2.9", "0.1.5"}.isdisjoint(facts["sgl-kernel"])
    assert ("0.2.8" in facts["sgl-kernel"], "0.4.8" in facts["sglang-kernel"]) == (True, True)
