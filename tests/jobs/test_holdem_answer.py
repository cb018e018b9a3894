"""How an answer of the policy is judged: by the solver's action, whatever form it came in."""

from __future__ import annotations

import pytest
from holdem.answer import judge, read_action, read_answer

CALL = '<tool_call>{"name": "make_action", "arguments": {"action_type": "raise", "amount": 12}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>fold</action>", "fold"),
        ("I think so. <action>call</action>", "call"),
        ("<action>fold</action> no: <action>Raise 11.50</action>", "raise 11.5"),
        ("<action>\n bet $18 chips\n</action>", "bet 18"),
        ("<action>call 4</action>", "call"),
        ("<action>all-in</action>", "raise"),
        (CALL, "raise 12"),
        ('<tool_call>{"name": "get_hand_info", "arguments": {}}</tool_call>' + CALL, "raise 12"),
    ],
)
def test_reads_the_last_decision(text: str, action: str) -> None:
    assert str(read_answer(text)) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would call here",
        "<action>call",
        "<action>think</action>",
        "<tool_call>{not json}</tool_call>",
        '<tool_call>{"name": "make_action", "arguments": null}</tool_call>',
        '<tool_call>{"name": "make_action", "arguments": {"amount": 3}}</tool_call>',
        "<tool_call>[1]</tool_call>",
    ],
)
def test_reads_nothing_where_there_is_no_decision(text: str) -> None:
    assert read_answer(text) is None
    assert judge(text, "call")["score"] == -1.0


@pytest.mark.parametrize(
    ("given", "label", "score"),
    [
        ("call", "call", 1.0),
        ("check", "call", 0.0),
        ("raise 11", "raise 11.0", 1.0),
        ("raise 22", "raise 11", 0.75),
        ("raise 0", "raise 11", 0.5),
        ("raise", "raise 11", 0.5),
        ("raise 50", "bet 50", 0.25),
        ("fold", "raise 11", 0.0),
        ("raise 5", "raise", 1.0),
        (f"raise {'9' * 400}", "raise 10", 0.5),
    ],
)
def test_scores_by_kind_then_by_amount(given: str, label: str, score: float) -> None:
    found = judge(f"<action>{given}</action>", label)
    assert (found["score"], found["exact"]) == (score, score == 1.0)


def test_a_label_without_an_action_is_the_datas_fault() -> None:
    with pytest.raises(ValueError, match="the label 'maybe' names no action"):
        judge("<action>call</action>", "maybe")
    assert read_action("recall") is None
