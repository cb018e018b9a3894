"""A suite: which problems, asked how, decoded how, judged within which limits. The schema of a suite's TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rlbox.config.schema import Frozen
from rlbox.evaluation.lock import content_digest
from rlbox.evaluation.problem import ANSWER, FUNCTION, PROGRAM, Asking, EvalProblem, ProblemError
from rlbox.i18n import _


class Decoding(Frozen):
    """How answers are drawn; the defaults are the seed's EVAL@1 protocol (P135)."""

    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(2048, ge=1, description="new tokens of an answer, at most")
    stop: tuple[str, ...] = ()
    samples: int = Field(1, ge=1, description="answers to each problem; more than one wants a temperature")
    seed: int = Field(0, ge=0, description="of the first answer to a problem; the next ones count on from it")


class JudgingLimits(Frozen):
    """What a program may take; the defaults are the seed's (P135)."""

    run_s: float = Field(30.0, gt=0, description="processor time of one run, in seconds")
    memory_mb: int = Field(1024, ge=1)


class MadeTasks(Frozen):
    """Tasks of one of reasoning-gym's datasets: the same seed makes the same tasks."""

    dataset: str
    size: int = Field(ge=1)
    seed: int = Field(ge=0)
    settings: dict[str, Any] = Field({}, description="of the dataset")


class Suite(Frozen):
    """A set of problems and its protocol."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    title: str
    title_zh: str = ""
    file: str = Field("", description="rows below the folder of problems, .jsonl or .jsonl.gz")
    package: str = Field("", description="distribution of the stack that has the file")
    rows: int = Field(0, ge=0, description="how many problems it has; 0: as many as there are")
    ask_program: str = PROGRAM
    ask_function: str = FUNCTION
    ask_answer: str = ANSWER
    judge: Literal["", "math", "reasoning-gym"] = Field("", description="who compares answers that are no code")
    make: tuple[MadeTasks, ...] = Field((), description="tasks that are made instead of read")
    decoding: Decoding = Decoding()
    limits: JudgingLimits = JudgingLimits()

    @property
    def asking(self) -> Asking:
        """How its problems are asked."""
        return Asking(program=self.ask_program, function=self.ask_function, answer=self.ask_answer, judge=self.judge)


def chosen_problems(
    suite: Suite, found: Mapping[str, EvalProblem], wanted: Sequence[str], *, any_size: bool
) -> list[EvalProblem]:
    """Return the problems of a suite in the order of its manifest, `wanted`, or as they are in the file without one.

    `ProblemError` where one is missing, none is left, or there are more or fewer than the suite says.
    """
    names = list(wanted) or list(found)
    if missing := [name for name in names if name not in found]:
        raise ProblemError(
            _("{suite} has no row {missing!r} of its manifest ({count} are missing)").format(
                suite=suite.name, missing=missing[0], count=len(missing)
            )
        )
    if len(set(names)) < len(names):
        raise ProblemError(_("the manifest of {suite} names a problem twice").format(suite=suite.name))
    if not names:
        raise ProblemError(_("{suite} has no problem").format(suite=suite.name))
    if suite.rows and len(names) != suite.rows and not any_size:
        raise ProblemError(
            _("{suite}: {count} problems, it has {rows}; bring the whole file").format(
                suite=suite.name, count=len(names), rows=suite.rows
            )
        )
    return [found[name] for name in names]


def suite_facts(suite: Suite, problems: Sequence[EvalProblem]) -> dict[str, Any]:
    """Return what the lock holds of a suite: its problems by content, and its protocol."""
    return {
        "problems": len(problems),
        "sha256": content_digest([problem.as_json() for problem in problems]),
        "decoding": suite.decoding.model_dump(mode="json"),
        "limits": suite.limits.model_dump(mode="json"),
    }
