"""Prove suites with their own reference solutions, before a model is asked: what fails here cannot be passed here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rlbox.evaluation.problem import EvalProblem
from rlbox.evaluation.sandbox import Sandbox
from rlbox.evaluation.suite import Suite
from rlbox.evaluation.verdict import AnswerVerdict
from rlbox.system.http import NoResponseError


def prove(suite: Suite, problems: Sequence[EvalProblem], sandbox: Sandbox) -> tuple[int, dict[str, AnswerVerdict]]:
    """Return how many reference solutions there are, and the verdicts on those that are not accepted here.

    `NoResponseError` where the sandbox itself fails.
    """
    own = [problem for problem in problems if problem.own_answer]

    def one(problem: EvalProblem) -> AnswerVerdict:
        return sandbox.judge(problem, problem.own_answer, suite.limits)

    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        verdicts = dict(zip((problem.id for problem in own), pool.map(one, own), strict=True))
    if broken := [one.detail for one in verdicts.values() if one.outcome == "sandbox"]:
        raise NoResponseError(broken[0], "unreached")
    return len(own), {name: verdict for name, verdict in verdicts.items() if not verdict.accepted}
