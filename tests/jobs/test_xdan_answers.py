"""Answers of mathematics: found in a response, compared as what they say; prompts as the trainer takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import load_cases
from xdan.answers import final_answer, same_plainly, well_formed
from xdan.chat import TEMPLATES, prompt_of, response_in
from xdan.data import read_problems
from xdan.program import JobError

CASES = load_cases("jobs", "test_xdan_answers")
CHATML = TEMPLATES["chatml"]
TURNS = [{"role": "system", "content": "be brief {x}"}, {"role": "user", "content": "1+1?"}]
PROMPT = "<|im_start|>system\nbe brief {x}<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(("response", "answer"), CASES["finds_the_answer"])
def test_finds_the_answer(response: str, answer: str) -> None:
    assert final_answer(response) == answer


@pytest.mark.parametrize(("given", "wanted"), CASES["the_same"])
def test_the_same(given: str, wanted: str) -> None:
    assert same_plainly(given, wanted)
    assert same_plainly(wanted, given)


@pytest.mark.parametrize(("given", "wanted"), CASES["not_the_same"])
def test_not_the_same(given: str, wanted: str) -> None:
    assert not same_plainly(given, wanted)


def test_the_form() -> None:
    assert well_formed("<think>so</think><answer>2</answer>")
    assert well_formed("<think>so\nso</think>\n<answer>2</answer>")
    for text in ("<answer>2</answer>", "<think>a</think>2", "x <think>a</think><answer>2</answer>"):
        assert not well_formed(text)
    assert not well_formed("<think>a</think><answer>1</answer><answer>2</answer>")


@pytest.mark.parametrize("message", [TURNS, json.dumps(TURNS), PROMPT, [*TURNS, {"role": "assistant", "content": "2"}]])
def test_every_form_of_a_message_becomes_the_same_prompt(message: object) -> None:
    assert prompt_of(message, CHATML) == PROMPT


def test_a_bare_question_and_other_templates() -> None:
    assert prompt_of("1+1?", CHATML) == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_of("[1, 2] is a list", CHATML).startswith("<|im_start|>user\n[1, 2] is")
    assert prompt_of(TURNS, TEMPLATES["base"]) == "User: 1+1?\n\nAssistant: "
    assert prompt_of(TURNS, TEMPLATES["qwen1"]) == "<｜User｜>1+1?<｜Assistant｜>"
    with pytest.raises(ValueError, match="no turn of role 'user'"):
        prompt_of([{"role": "system", "content": "x"}], CHATML)


def test_the_response_stands_behind_the_prompt() -> None:
    query = f"<|endoftext|><|endoftext|>{PROMPT}<think>a</think><answer>2</answer><|im_end|><|endoftext|>"
    for prompt in (PROMPT, ""):
        assert response_in(query, prompt, CHATML) == "<think>a</think><answer>2</answer>"


def test_reads_a_data_set(tmp_path: Path) -> None:
    rows = [{"message": TURNS, "answer": " 2 "}, {"message": "2+2?", "answer": 4}, {"message": TURNS, "answer": "2"}]
    whole, lines = tmp_path / "a.json", tmp_path / "a.jsonl"
    whole.write_text(json.dumps(rows))
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n")
    for path in (whole, lines):
        found = read_problems(path, input_key="message", answer_key="answer", template=CHATML)
        assert [(problem.prompt == PROMPT, problem.answer) for problem in found] == [(True, "2"), (False, "4")]


@pytest.mark.parametrize(("text", "message"), CASES["bad_rows_are_named"])
def test_bad_rows_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(JobError, match=message):
        read_problems(path, input_key="message", answer_key="answer", template=CHATML)
    with pytest.raises(JobError, match="cannot read the data set"):
        read_problems(tmp_path / "no.json", input_key="message", answer_key="answer", template=CHATML)
