"""Problems: HumanEval, MBPP, CodeContests and answers that are compared, parsed from rows as they are published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlbox.i18n import _

PROGRAM_PROMPT = (
    "Solve the problem with a Python 3 program that reads standard input and writes standard output. "
    "Answer with one code block.\n\n{statement}"
)
FUNCTION_PROMPT = (
    "Write the Python 3 code that is asked for. Answer with one code block that holds all of it.\n\n{statement}"
)
ANSWER_PROMPT = "Solve the problem. Think step by step, then write the answer alone in \\boxed{{}}.\n\n{statement}"

Scorer = Literal["", "math", "reasoning-gym"]
"""What compares answers with the expected one; empty: answers are code, which is run."""


class ProblemError(ValueError):
    """A row is no problem, or a set has other problems than it says."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One task.

    Attributes
    ----------
    message
        What the model is asked.
    stdin_tests
        Pairs of standard input and expected output; without one, `test_code` tests what the answer defines.
    test_code
        Source that calls the answer's functions and asserts.
    preamble
        What the answer is written to stand behind, as the official harness runs it: the whole prompt of a HumanEval
        task with its helper functions, the imports of an MBPP task.
    functions
        The functions that are tested; empty: those that `test_code` calls and nobody else defines.
    expected
        The expression that is right, or the task of reasoning-gym as JSON.
    solution
        The reference solution, where the set has one.
    """

    id: str
    message: str
    stdin_tests: tuple[tuple[str, str], ...] = ()
    test_code: str = ""
    preamble: str = ""
    functions: tuple[str, ...] = ()
    scorer: Scorer = ""
    expected: str = ""
    solution: str = ""

    @property
    def solution_as_model_answer(self) -> str:
        """The reference solution as a model would answer; empty without one."""
        return f"```python\n{self.solution}\n```" if self.solution and not self.scorer else self.solution

    def as_json(self) -> dict[str, Any]:
        """Return what the digest of a suite is made of: its keys are part of every lock."""
        return {
            "id": self.id,
            "ask": self.message,
            "runs": [list(test) for test in self.stdin_tests],
            "check": self.test_code,
            "before": self.preamble,
            "names": list(self.functions),
            "judge": self.scorer,
            "wanted": self.expected,
            "solution": self.solution,
        }


@dataclass(frozen=True, kw_only=True)
class PromptTemplates:
    """How problems are asked, with `{statement}` for theirs: for a program, functions, an answer that is no code."""

    program: str = PROGRAM_PROMPT
    function: str = FUNCTION_PROMPT
    answer: str = ANSWER_PROMPT


def parse_problems(
    rows: Iterable[Mapping[str, Any]], templates: PromptTemplates, scorer_of_all_rows: Scorer = ""
) -> dict[str, Problem]:
    """Return problems by their id, in the order of the rows; two with one id, or one without a test, are refused."""
    problems: dict[str, Problem] = {}
    for row in rows:
        try:
            problem = _parse_problem(row, templates, scorer_of_all_rows)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            keys = ", ".join(map(str, row))
            raise ProblemError(
                _("a row with the keys {row} is not a problem: {error!r}").format(row=keys, error=error)
            ) from error
        if problem.id in problems:
            raise ProblemError(_("two problems are called {id!r}").format(id=problem.id))
        if not problem.stdin_tests and not problem.test_code.strip() and not problem.expected:
            raise ProblemError(_("problem {id!r} has no test").format(id=problem.id))
        problems[problem.id] = problem
    return problems


def _parse_problem(row: Mapping[str, Any], templates: PromptTemplates, scorer: Scorer) -> Problem:
    if scorer:
        return _parse_question(row, templates.answer, scorer)
    if "entry_point" in row:
        return _parse_humaneval(row, templates.function)
    if "test_list" in row:
        return _parse_mbpp(row, templates.function)
    return _parse_codecontests(row, templates.program)


def _parse_humaneval(row: Mapping[str, Any], template: str) -> Problem:
    return Problem(
        id=str(row["task_id"]),
        message=template.format(statement=row["prompt"]),
        test_code=f"{row['test']}\ncheck({row['entry_point']})\n",
        preamble=row["prompt"],
        functions=(str(row["entry_point"]),),
        solution=row["prompt"] + row["canonical_solution"] if row.get("canonical_solution") else "",
    )


def _parse_mbpp(row: Mapping[str, Any], template: str) -> Problem:
    tests = "\n".join(row["test_list"])
    statement = f"{row.get('text') or row['prompt']}\n\nIt must pass:\n{tests}"
    return Problem(
        id=str(row["task_id"]),
        message=template.format(statement=statement),
        test_code=tests + "\n",
        preamble="\n".join([*row.get("test_imports", ()), row.get("test_setup_code") or ""]),
        solution=str(row.get("code") or ""),
    )


def _parse_codecontests(row: Mapping[str, Any], template: str) -> Problem:
    tests: list[tuple[str, str]] = []
    for group in ("public_tests", "private_tests", "generated_tests"):
        part = row.get(group) or {"input": (), "output": ()}
        tests += zip(map(str, part["input"]), map(str, part["output"]), strict=True)
    name = str(row.get("problem_id") or row["name"])
    return Problem(id=name, message=template.format(statement=row["description"]), stdin_tests=tuple(tests))


def _parse_question(row: Mapping[str, Any], template: str, scorer: Scorer) -> Problem:
    """Parse MATH's and GSM8K's rows, whose answer stands behind `####`, and tasks that reasoning-gym made."""
    statement = str(row.get("problem") or row["question"])
    answer = str(row["answer"]).rpartition("####")[2].strip()
    name = row.get("unique_id") or row.get("id") or hashlib.sha256(statement.encode()).hexdigest()[:12]
    is_generated = scorer == "reasoning-gym"
    return Problem(
        id=str(name),
        message=template.format(statement=statement),
        scorer=scorer,
        expected=str(row["wanted"]) if is_generated else answer,
        solution=f"<answer>{row['answer']}</answer>" if is_generated else f"\\boxed{{{answer}}}",
    )
