"""Make the evaluation lock of what is about to be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlbox.evaluation.evaluate import Chosen
from rlbox.evaluation.lock import EvaluationLock, content_digest
from rlbox.evaluation.policy import Answering, Prompt
from rlbox.evaluation.problem import EvalProblem
from rlbox.evaluation.suite import Suite, suite_facts
from rlbox.evaluation.verdict import EXTRACTION, SCORING


def ask_for_prompts(
    suites: Sequence[tuple[Suite, Sequence[EvalProblem]]], policy: Answering, at_once: int
) -> list[Chosen]:
    """Return suites with the prompts that the server makes of their problems."""
    found = []
    with ThreadPoolExecutor(at_once) as pool:
        for suite, problems in suites:
            made = pool.map(lambda problem: policy.prompt(problem.ask), problems)
            prompts = dict(zip((problem.id for problem in problems), made, strict=True))
            found.append(Chosen(suite=suite, problems=problems, prompts=prompts))
    return found


def make_lock(
    chosen: Sequence[Chosen],
    engine: Mapping[str, Any],
    sandbox: Mapping[str, Any],
    export: tuple[Mapping[str, Any], Mapping[str, Any]],
    judges: Mapping[str, Any],
) -> EvaluationLock:
    """Return the lock: `export` is the subject and the tokenizer's part of what is judged.

    `judges` are the packages, with their versions, of what compares answers that are no code.
    """
    subject, tokenizer = export
    facts = {one.suite.name: suite_facts(one.suite, one.problems) for one in chosen}
    parts = {
        "suites": {name: {key: row[key] for key in ("problems", "sha256")} for name, row in facts.items()},
        "prompts": {one.suite.name: _prompts(one.prompts) for one in chosen},
        "decoding": {name: row["decoding"] for name, row in facts.items()},
        "tokenizer": dict(tokenizer),
        "engine": dict(engine),
        "extraction": {"version": EXTRACTION},
        "sandbox": {**sandbox, "limits": {name: row["limits"] for name, row in facts.items()}},
        "scoring": {"version": SCORING, **judges},
    }
    return EvaluationLock(parts=parts, subject=subject)


def _prompts(prompts: Mapping[str, Prompt]) -> dict[str, Any]:
    """Return one digest of all prompts, and whether it is of token ids or of text that the server makes them of."""
    as_tokens = all(prompt.tokens for prompt in prompts.values())
    asked = {name: list(prompt.tokens) if as_tokens else prompt.text for name, prompt in prompts.items()}
    return {"as": "tokens" if as_tokens else "text", "sha256": content_digest(asked)}
