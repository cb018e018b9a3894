"""Patterns of users: what RE2 takes, what is refused and with which hint, and that searching is linear and exact."""

from __future__ import annotations

import re

import pytest
from fakes import load_cases
from hypothesis import given
from hypothesis import strategies as st

from rlbox.config.pattern import compile_re2, validate_selective_re2_pattern
from rlbox.job.gate import extract_named_group_regex_or_empty
from rlbox.logs.patterns import compile_pattern_set, strip_anchors_and_group_names

CASES = load_cases("config", "test_patterns")


@pytest.mark.parametrize(("text", "told"), CASES["refused"])
def test_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        validate_selective_re2_pattern(text)


@pytest.mark.parametrize(
    ("text", "line", "fits"),
    [
        ("(?i)ERROR", "an error", True),
        ("ERROR", "an error", False),
        ("(?i)straße", "STRASSE", False),
        ("(?i)É", "é", True),
        ("卡|超时", "同步超时", True),
        ("^.$", "卡", True),
        (r"\d", "５", False),
        (r"\p{Nd}", "５", True),
        (r"[(?!]", "(", True),
        (r"\[holdem\]\[rollout 0\]", "[holdem][rollout 0]", True),
        (r"a\z", "ba", True),
        (r"loss[^\n]nan", "loss nan", True),
        ("(a+)+$", "a" * 5000 + "b", False),
    ],
)
def test_fits(text: str, line: str, fits: bool) -> None:
    assert (compile_re2(validate_selective_re2_pattern(text)).search(line) is not None) is fits


ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\b", "^", "$", "(a|b)", "(?:ab)?", "a*", "1", r"\.", "卡", "(?i)A"]
)
LINES = st.text(st.sampled_from("ab1. 卡A"), max_size=8)


@given(st.lists(ATOMS, min_size=1, max_size=4).map("".join), st.lists(LINES, min_size=1, max_size=6))
def test_a_block_search_misses_no_line(text: str, lines: list[str]) -> None:
    pattern = compile_re2(text)
    block, found, at, index = "\n".join(lines).encode(), set[int](), 0, 0
    patterns = compile_pattern_set((text, "never"))
    while at <= len(block) and (hit := patterns.find_next_candidate(block, at)) is not None:
        index += block.count(b"\n", at, hit)
        found.add(index)
        end = block.find(b"\n", hit)
        if end < 0:
            break
        at, index = end + 1, index + 1
    fitting = {number for number, line in enumerate(lines) if pattern.search(line)}
    assert fitting <= found
    assert all((0 in patterns.find_matching_indexes(line)) == (number in fitting) for number, line in enumerate(lines))


def test_groups() -> None:
    assert extract_named_group_regex_or_empty(r"(a)(?P<value>x(y[)]|z)\))", "value") == r"x(y[)]|z)\)"
    assert strip_anchors_and_group_names(r"^(?P<a>x)$|[$]\$") == r"(?:)(?:x)(?:)|[$]\$"
