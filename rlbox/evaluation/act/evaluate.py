"""Ask, judge and keep: answers are generated and judged at the same time, and what is known is not asked again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.evaluation.act.kept import KeptRows
from rlbox.evaluation.act.policy import Policy, Prompt
from rlbox.evaluation.act.sandbox import Sandbox
from rlbox.evaluation.problem import EvalProblem
from rlbox.evaluation.suite import Suite

Row = dict[str, Any]
Rows = dict[str, list[Row]]
"""The rows of each suite, in the order of its problems and answers."""
Tell = Callable[[str, int, int], None]
"""Called with a suite's name, how many answers of it are judged, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One answer that is wanted."""

    suite: Suite
    problem: EvalProblem
    number: int

    @property
    def key(self) -> tuple[str, str, int]:
        """Suite, problem and number."""
        return self.suite.name, self.problem.id, self.number


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A suite with its problems and their prompts, by id."""

    suite: Suite
    problems: Sequence[EvalProblem]
    prompts: Mapping[str, Prompt]


def evaluate(
    chosen: Sequence[Chosen], policy: Policy, sandbox: Sandbox, kept: KeptRows, *, at_once: int, tell: Tell
) -> Rows:
    """Return a row for every answer; `at_once` are asked for at a time, and judged as they come.

    Raises
    ------
    PolicyError
        The server failed; what was answered and judged before is kept.
    """
    tasks = [
        Task(suite=one.suite, problem=problem, number=number)
        for one in chosen
        for problem in one.problems
        for number in range(one.suite.decoding.samples)
    ]
    prompts = {(one.suite.name, name): prompt for one in chosen for name, prompt in one.prompts.items()}
    found = _Round(policy, sandbox, kept, prompts).carry_out(tasks, at_once, _Counts(tasks, tell))
    rows: Rows = {one.suite.name: [] for one in chosen}
    for task in tasks:
        rows[task.suite.name].append(found[task.key])
    return rows


class _Round:
    """One round over all answers that are wanted; the first failure of the server ends it."""

    def __init__(
        self, policy: Policy, sandbox: Sandbox, kept: KeptRows, prompts: Mapping[tuple[str, str], Prompt]
    ) -> None:
        self._policy, self._sandbox, self._kept, self._prompts = policy, sandbox, kept, prompts
        self._judges = ThreadPoolExecutor(os.cpu_count() or 1)
        self._stop = threading.Event()

    def carry_out(self, tasks: Sequence[Task], at_once: int, counts: _Counts) -> dict[tuple[str, str, int], Row]:
        """Return the row of each task."""
        found: dict[tuple[str, str, int], Row] = {}
        with self._judges, ThreadPoolExecutor(at_once) as askers:
            asked = {askers.submit(self._ask, task): task for task in tasks}
            for future in as_completed(asked):
                outcome = future.result()
                row = outcome.result() if isinstance(outcome, Future) else outcome
                if row is not None:
                    found[asked[future].key] = row
                    counts.one_more(asked[future].suite.name)
        return found

    def _ask(self, task: Task) -> Future[Row] | Row | None:
        """Return the row that is kept, or what will be one; nothing where the round has ended."""
        known = self._kept.read(task.suite.name, task.problem.id, task.number)
        if known and "outcome" in known:
            return known
        if self._stop.is_set():
            return None
        try:
            known = known or self._answer(task)
        except BaseException:
            self._stop.set()
            raise
        return self._judges.submit(self._judge, task, known)

    def _answer(self, task: Task) -> Row:
        prompt = self._prompts[task.suite.name, task.problem.id]
        answer = asdict(self._policy.answer(prompt, task.suite.decoding, task.number))
        known = {"problem": task.problem.id, "number": task.number, "ask": task.problem.ask}
        return self._kept.write(task.suite.name, {**known, **answer})

    def _judge(self, task: Task, asked: Row) -> Row:
        verdict = self._sandbox.judge(task.problem, asked["text"], task.suite.limits)
        return self._kept.write(task.suite.name, {**asked, **asdict(verdict), "executed": verdict.executed})


class _Counts:
    """Tells how far each suite is."""

    def __init__(self, tasks: Sequence[Task], tell: Tell) -> None:
        self._tell = tell
        self._whole: dict[str, int] = {}
        self._done: dict[str, int] = {}
        for task in tasks:
            self._whole[task.suite.name] = self._whole.get(task.suite.name, 0) + 1

    def one_more(self, suite: str) -> None:
        """Count one judged answer."""
        self._done[suite] = self._done.get(suite, 0) + 1
        self._tell(suite, self._done[suite], self._whole[suite])
