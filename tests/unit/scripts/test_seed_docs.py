"""The page of the notes' commands, and what its table refuses."""

from __future__ import annotations

import re

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.errors import SpecError
from scripts.docs.seed_docs import Seeds, load_seeds, seed_page

ROW = {"seed": "000", "commands": "1 2: a `b` | c\n3: d", "rlbox": ["rlbox run x"], "how": "a | b"}
SEEDS = {"seeds": {"000": {"title": "t", "target": "x", "job": "x"}}, "row": [ROW]}
TEMPLATES = Project(folder=CHECKOUT).template_dirs()


def test_a_row_tells_where_its_commands_stand() -> None:
    (row,) = validate_spec(Seeds, SEEDS, "seeds.toml").row
    assert row.lines() == (((1, 2), "a `b` | c"), ((3,), "d"))


def test_bars_and_backticks_of_a_command_do_not_break_the_table() -> None:
    page = seed_page(validate_spec(Seeds, SEEDS, "seeds.toml"), TEMPLATES)
    assert "| 1, 2: `` a `b` \\| c ``<br>3: `d` | `rlbox run x` | a \\| b |\n" in page


def test_the_tables_of_the_page_are_whole() -> None:
    page = seed_page(load_seeds(CHECKOUT), TEMPLATES)
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()} == {4}
    assert len(re.findall(r"^## Note \d{3}$", page, re.MULTILINE)) == 5


@pytest.mark.parametrize(
    "change", [{"commands": "a command"}, {"commands": "1:no blank"}, {"rlbox": []}, {"seed": "1"}]
)
def test_what_the_table_refuses(change: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        validate_spec(Seeds, {**SEEDS, "row": [{**ROW, **change}]}, "seeds.toml")
