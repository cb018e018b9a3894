"""What a model wrote of a failure stops nothing; a failure does: lanes that go on, and texts of several lines."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fakes import make_line_block
from test_gates import forbid_rule, line_rule, stage, states

from rlbox.diagnose.first_fatal import FirstFatalFinder
from rlbox.gate.gate import GateChecker
from rlbox.job.gate import ForbidRule, IgnoredModelText, MetricRule
from rlbox.logs.lines import strip_ansi_escapes

OOM = "torch.OutOfMemoryError: CUDA out of memory"
RULE = forbid_rule("CUDA out of memory")
SPAN = (IgnoredModelText(begins=r"^DEBUG:", ends=r"^INFO: update done"),)


def judge(*rules: ForbidRule, **fields: Any) -> GateChecker:
    return GateChecker(dataclasses.replace(stage(require=(), forbid=rules or (RULE,)), **fields))


def feed(gate: GateChecker, *lines: str) -> list[int]:
    """Return the numbers of the forbidden lines that count, all lines fed as one block."""
    gate.feed("stage", "".join(f"{line}\n" for line in lines).encode())
    return [broken.line.number for broken in gate.events.forbidden]


@pytest.mark.parametrize("mark", ["", "(TaskRunner pid=7) ", "\x1b[36m(TaskRunner pid=7)\x1b[0m ", "[rank0] "])
@pytest.mark.parametrize(
    "step",
    ["step:{} - a/loss:0.5", "iteration {}/ 9 | lm loss: 0.5 |", "Global step {}: {{'loss': 0.5}}", "step {} loss 0.5"],
)
def test_a_lane_that_goes_on_is_noted(mark: str, step: str) -> None:
    gate = judge()
    lines = [mark + step.format(number) for number in (1, 2, 3, 4)]
    assert feed(gate, *lines[:2], mark + OOM) == []
    assert (gate.events.warnings, states(gate, "forbid")[0][0]) == ([], "waiting")
    assert feed(gate, *lines[2:]) == []
    gate.close_logs_and_decide_undecided_lines()
    gate.decide_waiting_rules_except_caller_decided()
    assert [noted.line.number for noted in gate.events.warnings] == [3]
    ((state, seen, count),) = states(gate, "forbid")
    assert (state, count) == ("held", 1)
    assert OOM in seen
    assert gate.is_harmless_line_so_far("stage", 3, strip_ansi_escapes(mark + OOM))


@pytest.mark.parametrize(
    "lines",
    [
        [OOM, "step 1 loss 1", "step 2 loss 1"],
        ["(W pid=1) step 1 loss 1", f"(W pid=2) {OOM}", "(W pid=1) step 2 loss 1"],
        ["step 1 loss 1", "step 2 loss 1 CUDA out of memory", "step 3 loss 1"],
    ],
    ids=["before the first step", "another lane goes on", "a line that tells of a step"],
)
def test_it_counts_at_once(lines: list[str]) -> None:
    gate = judge()
    assert feed(gate, *lines[: [RULE.pattern in line for line in lines].index(True) + 1]) != []


@pytest.mark.parametrize(
    "after",
    [[], ["step 2 loss 1"], ["step 1 loss 1"], ["(W pid=2) step 3 loss 1"]],
    ids=["none", "the same", "an old one", "another lane's"],
)
def test_without_a_further_step_it_counts_at_the_end(after: list[str]) -> None:
    gate = judge()
    assert feed(gate, "step 1 loss 1", "step 2 loss 1", OOM, *after) == []
    gate.close_logs_and_decide_undecided_lines()
    assert [broken.line.number for broken in gate.events.forbidden] == [3]


def test_without_a_further_step_it_counts_in_time() -> None:
    gate = judge()
    for elapsed_s, step in ((40.0, 1), (60.0, 2)):
        gate.fail_late_rules(elapsed_s)
        feed(gate, f"step {step} loss 1")
    feed(gate, OOM)
    gate.fail_late_rules(60.0 + 2 * 40.0)
    assert gate.events.forbidden == []
    gate.fail_late_rules(60.0 + 2 * 40.0 + 0.1)
    assert [broken.line.number for broken in gate.events.forbidden] == [3]


def test_a_second_one_without_a_further_step_counts() -> None:
    gate = judge()
    assert feed(gate, "step 1 loss 1", OOM, "step 2 loss 1", OOM) == []
    gate.close_logs_and_decide_undecided_lines()
    assert [noted.line.number for noted in gate.events.warnings] == [2]
    assert [broken.line.number for broken in gate.events.forbidden] == [4]


def test_always() -> None:
    gate = judge(RULE.model_copy(update={"always": True}))
    assert feed(gate, "step 1 loss 1", OOM, "step 2 loss 1") == [2]


def test_the_steps_of_a_metric() -> None:
    metric = MetricRule(name="reward", pattern=r"update (?P<step>\d+) reward (?P<value>\S+)")
    assert feed(judge(metrics=(metric,)), "update 1 reward 2", OOM, "update 2 reward 2") == []


def first_fatal(gate: GateChecker, *lines: str) -> int:
    feed(gate, *lines)
    finder = FirstFatalFinder(lambda number, text: gate.is_harmless_line_so_far("stage", number, text))
    finder.feed(make_line_block(lines))
    return finder.first_fatal.number if finder.first_fatal else 0


def test_it_is_no_cause_after_two_steps() -> None:
    lines = ["step 1 loss 1", OOM, "step 2 loss 1"]
    assert first_fatal(judge(), *lines, "ValueError: bad") == 2
    assert first_fatal(judge(), *lines, "step 3 loss 1", "ValueError: bad") == 5


def test_a_text_of_several_lines() -> None:
    gate = judge(RULE.model_copy(update={"always": True}), model_texts=SPAN, require=(line_rule("PASSED"),))
    text = ["(D pid=1) DEBUG: answer", f"(D pid=1) {OOM}", "(D pid=1) PASSED", "(D pid=1) DEBUG: again"]
    assert feed(gate, *text) == []
    assert feed(gate, "(D pid=1) INFO: update done.") == []
    assert states(gate, "require")[0][0] == "waiting"
    assert gate.is_harmless_line_so_far("stage", 2, text[1])
    assert feed(gate, f"(D pid=1) {OOM}") == [6]


def test_a_text_of_several_lines_in_another_lane() -> None:
    gate = judge(model_texts=SPAN)
    assert feed(gate, "(D pid=1) DEBUG: answer", f"(W pid=2) {OOM}", "(D pid=1) INFO: update done.") == [2]


@pytest.mark.parametrize("rest", [[], ["more"] * 10_001], ids=["the command ends", "it is too long"])
def test_a_text_without_an_end_is_none(rest: list[str]) -> None:
    gate = judge(model_texts=SPAN)
    assert feed(gate, "DEBUG: answer", OOM) == []
    assert not gate.is_harmless_line_so_far("stage", 2, OOM)
    feed(gate, *rest, *([OOM] if rest else []))
    gate.close_logs_and_decide_undecided_lines()
    assert gate.events.forbidden[0].line.number == 2


@pytest.mark.parametrize("at", [0, 2500, 4998])
def test_in_a_flood_of_steps_a_lane_that_goes_on_is_noted(at: int) -> None:
    gate = judge()
    steps = [f"(W pid=1) step {number} loss 1" for number in range(15_000)]
    assert feed(gate, *steps[:5000]) == []
    assert feed(gate, *steps[5000 : 5001 + at], f"(W pid=1) {OOM}") == []
    assert feed(gate, *steps[5001 + at : 10_000]) == []
    gate.fail_late_rules(1e6)
    assert [noted.line.number for noted in gate.events.warnings] == [5002 + at]


def test_in_a_flood_of_steps_a_lane_that_makes_none_fails_at_once() -> None:
    gate = judge()
    steps = [f"(W pid=1) step {number} loss 1" for number in range(5000)]
    assert feed(gate, *steps, f"(W pid=2) {OOM}") == [5001]


def test_steps_within_a_text_of_a_model_are_none_however_many() -> None:
    gate = judge(model_texts=SPAN)
    quoted = [f"(D pid=1) step {number} loss 1" for number in range(1000)]
    assert feed(gate, "(D pid=1) DEBUG: answer", *quoted, "(D pid=1) INFO: update done.") == []
    assert feed(gate, f"(D pid=1) {OOM}") == [1003]
