"""Every example of the two pages about gates loads, and every key of every rule is in one of them."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.config.schema import validate_spec
from rlbox.job.gate import BenignRule, FileRule, FinalProbe, ForbidRule, Gate, MetricRule, RequireRule

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = "".join((CHECKOUT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("gates", "gates-details"))
EXAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
RULES = {
    "require": RequireRule,
    "forbid": ForbidRule,
    "benign": BenignRule,
    "files": FileRule,
    "metrics": MetricRule,
    "probes": FinalProbe,
}


def gate_of(text: str) -> dict[str, Any]:
    gate: dict[str, Any] = tomllib.loads(text)["stages"]["gate"]
    return gate


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_load(text: str) -> None:
    assert validate_spec(Gate, gate_of(text), "docs/gates.md") != Gate()


def test_every_key_is_explained() -> None:
    assert {key for text in EXAMPLES for key in gate_of(text)} == set(Gate.model_fields)
    for kind, model in RULES.items():
        missing = {key for key in model.model_fields if not re.search(rf"\b{key}\b", TEXT)}
        assert not missing, kind
