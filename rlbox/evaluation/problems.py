"""Problems: HumanEval, MBPP, CodeContests and answers that are compared, read from rows as they are published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.i18n import _

PROGRAM_PROMPT = (
    "Solve the problem with a Python 3 program that reads standard input and writes standard output. "
    "Answer with one code block.\n\n{statement}"
)
FUNCTION_PROMPT = (
    "Write the Python 3 code that is asked for. Answer with one code block that holds all of it.\n\n{statement}"
)

ANSWER_PROMPT = "Solve the problem. Think step by step, then write the answer alone in \\boxed{{}}.\n\n{statement}"


class ProblemError(ValueError):
    """A row is no problem, or a set has other problems than it says."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One task.

    Attributes
    ----------
    ask
        The message to the model.
    runs
        Pairs of standard input and expected output; without one, `check` tests what the answer defines.
    check
        Source that calls the answer's functions and asserts.
    before
        What the answer is written to stand behind, as the official harness runs it: the whole prompt of a HumanEval
        task with its helper functions, the imports of an MBPP task.
    names
        The functions that are tested; empty: those that `check` calls and nobody else defines.
    judge
        Who compares the answer with `wanted`: `math` or `reasoning-gym`; empty: it is code, which is run.
    wanted
        The expression that is right, or the task of reasoning-gym as JSON.
    solution
        The reference solution as an answer would give it, where the set has one: the suite is proven with it first.
    """

    id: str
    ask: str
    runs: tuple[tuple[str, str], ...] = ()
    check: str = ""
    before: str = ""
    names: tuple[str, ...] = ()
    judge: str = ""
    wanted: str = ""
    solution: str = ""

    @property
    def own_answer(self) -> str:
        """The reference solution as a model would answer; empty without one."""
        return f"```python\n{self.solution}\n```" if self.solution and not self.judge else self.solution

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types: what its digest is made of."""
        return asdict(self) | {"runs": [list(run) for run in self.runs], "names": list(self.names)}


@dataclass(frozen=True, kw_only=True)
class PromptTemplates:
    """How problems are asked, `{statement}` being theirs, and who judges answers that are no code."""

    program: str = PROGRAM_PROMPT
    function: str = FUNCTION_PROMPT
    answer: str = ANSWER_PROMPT
    judge: str = ""


def parse_problem(row: Mapping[str, Any], asking: PromptTemplates = PromptTemplates()) -> Problem:
    """Return one row of HumanEval, MBPP or CodeContests, or a question with its answer, as a problem."""
    program, function = asking.program, asking.function
    try:
        if asking.judge:
            return _compared(row, asking)
        if "entry_point" in row:
            return _humaneval(row, function)
        if "test_list" in row:
            return _mbpp(row, function)
        return _codecontests(row, program)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProblemError(
            _("a row with the keys {row} is no problem: {error!r}").format(row=", ".join(map(str, row)), error=error)
        ) from error


def parse_problems(rows: Iterator[Mapping[str, Any]], asking: PromptTemplates) -> dict[str, Problem]:
    """Return problems by their id, in the order of the rows; two with one id are refused."""
    found: dict[str, Problem] = {}
    for row in rows:
        problem = parse_problem(row, asking)
        if problem.id in found:
            raise ProblemError(_("two problems are called {id!r}").format(id=problem.id))
        if not problem.runs and not problem.check.strip() and not problem.wanted:
            raise ProblemError(_("problem {id!r} has no test").format(id=problem.id))
        found[problem.id] = problem
    return found


def _humaneval(row: Mapping[str, Any], ask: str) -> Problem:
    return Problem(
        id=str(row["task_id"]),
        ask=ask.format(statement=row["prompt"]),
        check=f"{row['test']}\ncheck({row['entry_point']})\n",
        before=row["prompt"],
        names=(str(row["entry_point"]),),
        solution=row["prompt"] + row["canonical_solution"] if row.get("canonical_solution") else "",
    )


def _mbpp(row: Mapping[str, Any], ask: str) -> Problem:
    tests = "\n".join(row["test_list"])
    statement = f"{row.get('text') or row['prompt']}\n\nIt must pass:\n{tests}"
    before = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code") or ""])
    return Problem(
        id=str(row["task_id"]),
        ask=ask.format(statement=statement),
        check=tests + "\n",
        before=before,
        solution=str(row.get("code") or ""),
    )


def _codecontests(row: Mapping[str, Any], ask: str) -> Problem:
    runs: list[tuple[str, str]] = []
    for kind in ("public_tests", "private_tests", "generated_tests"):
        part = row.get(kind) or {"input": (), "output": ()}
        runs += zip(map(str, part["input"]), map(str, part["output"]), strict=True)
    name = str(row.get("problem_id") or row["name"])
    return Problem(id=name, ask=ask.format(statement=row["description"]), runs=tuple(runs))


def _compared(row: Mapping[str, Any], asking: PromptTemplates) -> Problem:
    """Read MATH's and GSM8K's rows, whose answer stands behind `####`, and tasks that were made."""
    statement = str(row.get("problem") or row["question"])
    right = str(row["answer"]).rpartition("####")[2].strip()
    known = row.get("unique_id") or row.get("id") or hashlib.sha256(statement.encode()).hexdigest()[:12]
    gym = asking.judge == "reasoning-gym"
    return Problem(
        id=str(known),
        ask=asking.answer.format(statement=statement),
        judge=asking.judge,
        wanted=str(row["wanted"]) if gym else right,
        solution=f"<answer>{row['answer']}</answer>" if gym else f"\\boxed{{{right}}}",
    )
