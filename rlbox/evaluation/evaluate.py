"""Ask, judge and keep: answers are generated and judged at the same time, and what is known is not asked again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.evaluation.kept import KeptRows
from rlbox.evaluation.policy import Answering, Prompt
from rlbox.evaluation.problem import EvalProblem
from rlbox.evaluation.sandbox import Sandbox
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
    chosen: Sequence[Chosen], policy: Answering, sandbox: Sandbox, kept: KeptRows, *, at_once: int, tell: Tell
) -> Rows:
    """Ask for every answer, `at_once` at a time, judged as they come; return the rows of all.

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
    return _AnsweredRound(tasks, sandbox, kept, _Counts(tasks, tell)).carry_out(policy, prompts, at_once)


class _AnsweredRound:
    """One round over all answers that are wanted; the first failure of the server ends it.

    What is answered is judged by threads of its own: the server is asked meanwhile.
    """

    def __init__(self, tasks: Sequence[Task], sandbox: Sandbox, kept: KeptRows, counts: _Counts) -> None:
        self._tasks, self._sandbox, self._kept, self._counts = tasks, sandbox, kept, counts
        self._judges = ThreadPoolExecutor(os.cpu_count() or 1)
        self._found: dict[tuple[str, str, int], Row | Future[Row]] = {}
        self._stop = threading.Event()

    def carry_out(self, policy: Answering, prompts: Mapping[tuple[str, str], Prompt], at_once: int) -> Rows:
        """Ask for what is not known; return the rows of each suite once all is judged."""
        with self._judges, ThreadPoolExecutor(at_once) as askers:
            try:
                for future in as_completed(askers.submit(self._ask, policy, prompts, task) for task in self._tasks):
                    future.result()
            except BaseException:
                self._stop.set()
                raise
        rows: Rows = {}
        for task in self._tasks:
            row = self._found[task.key]
            rows.setdefault(task.suite.name, []).append(row.result() if isinstance(row, Future) else row)
        return rows

    def _ask(self, policy: Answering, prompts: Mapping[tuple[str, str], Prompt], task: Task) -> None:
        """Have the row that is kept, or what will be one; nothing where the round has ended."""
        known = self._kept.read(task.suite.name, task.problem.id, task.number)
        if known and "outcome" in known:
            self._found[task.key] = known
            self._counts.one_more(task.suite.name)
            return
        if self._stop.is_set():
            return
        try:
            known = known or self._answer(policy, prompts[task.suite.name, task.problem.id], task)
        except BaseException:
            self._stop.set()
            raise
        self._found[task.key] = self._judges.submit(self._judge, task, known)

    def _answer(self, policy: Answering, prompt: Prompt, task: Task) -> Row:
        answer = asdict(policy.answer(prompt, task.suite.decoding, task.number))
        known = {"problem": task.problem.id, "number": task.number, "ask": task.problem.ask}
        return self._kept.write(task.suite.name, {**known, **answer})

    def _judge(self, task: Task, asked: Row) -> Row:
        verdict = self._sandbox.judge(task.problem, asked["text"], task.suite.limits)
        row = self._kept.write(task.suite.name, {**asked, **asdict(verdict), "executed": verdict.executed})
        self._counts.one_more(task.suite.name)
        return row


class _Counts:
    """Tells how far each suite is."""

    def __init__(self, tasks: Sequence[Task], tell: Tell) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._whole: dict[str, int] = {}
        self._done: dict[str, int] = {}
        for task in tasks:
            self._whole[task.suite.name] = self._whole.get(task.suite.name, 0) + 1

    def one_more(self, suite: str) -> None:
        """Count one judged answer."""
        with self._lock:
            self._done[suite] = self._done.get(suite, 0) + 1
            self._tell(suite, self._done[suite], self._whole[suite])
