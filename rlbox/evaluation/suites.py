"""Suites: the schema of their TOML files, their problems, their protocol."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from rlbox.amounts import size_text
from rlbox.config.schema import SpecModel
from rlbox.errors import RlboxError
from rlbox.evaluation.lock import content_digest
from rlbox.evaluation.problems import (
    ANSWER_PROMPT,
    FUNCTION_PROMPT,
    PROGRAM_PROMPT,
    Problem,
    ProblemError,
    PromptTemplates,
    parse_problems,
)
from rlbox.foreign import parse_json, toml_table
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.values import Command


class Decoding(SpecModel):
    """How answers are drawn; the defaults are the seed's EVAL@1 protocol (P135)."""

    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(2048, ge=1, description="new tokens of an answer, at most")
    stop: tuple[str, ...] = ()
    samples: int = Field(1, ge=1, description="answers to each problem; more than one wants a temperature")
    seed: int = Field(0, ge=0, description="of the first answer to a problem; the next ones count on from it")


class JudgingLimits(SpecModel):
    """What a program may take; the defaults are the seed's (P135)."""

    run_s: float = Field(30.0, gt=0, description="processor time of one run, in seconds")
    memory_mb: int = Field(1024, ge=1)


class GeneratedTasks(SpecModel):
    """Tasks of one of reasoning-gym's datasets: the same seed makes the same tasks."""

    dataset: str
    size: int = Field(ge=1)
    seed: int = Field(ge=0)
    settings: dict[str, Any] = Field({}, description="of the dataset")


class Suite(SpecModel):
    """A set of problems and its protocol."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    title: str
    title_zh: str = ""
    file: str = Field("", description="rows below the folder of problems, .jsonl or .jsonl.gz")
    package: str = Field("", description="distribution of the stack that has the file")
    rows: int = Field(0, ge=0, description="how many problems it has; 0: as many as there are")
    ask_program: str = PROGRAM_PROMPT
    ask_function: str = FUNCTION_PROMPT
    ask_answer: str = ANSWER_PROMPT
    judge: Literal["", "math", "reasoning-gym"] = Field("", description="who compares answers that are no code")
    make: tuple[GeneratedTasks, ...] = Field((), description="tasks that are made instead of read")
    decoding: Decoding = Decoding()
    limits: JudgingLimits = JudgingLimits()

    @property
    def asking(self) -> PromptTemplates:
        """How its problems are asked."""
        return PromptTemplates(
            program=self.ask_program, function=self.ask_function, answer=self.ask_answer, judge=self.judge
        )


def select_problems(
    suite: Suite, problems: Mapping[str, Problem], wanted: Sequence[str], *, any_size: bool
) -> list[Problem]:
    """Return the problems of a suite in the order of its manifest, `wanted`, or as they are in the file without one.

    `ProblemError` where one is missing, none is left, or there are more or fewer than the suite says.
    """
    names = list(wanted) or list(problems)
    if missing := [name for name in names if name not in problems]:
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
    return [problems[name] for name in names]


def describe_suite(suite: Suite, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return what the lock holds of a suite: its problems by content, and its protocol."""
    return {
        "problems": len(problems),
        "sha256": content_digest([problem.as_json() for problem in problems]),
        "decoding": suite.decoding.model_dump(mode="json"),
        "limits": suite.limits.model_dump(mode="json"),
    }


GYM_MAKE = Path(__file__).resolve().parent / "programs/gym_make.py"
_MAKING_S = 600.0
_MOST = 4 << 30
"""Bytes of an unpacked set of problems; the largest of the seed's has 1.5 GB."""


def load_problems(
    suite: Suite, folder: Path, packages: Path | None, manifests: Path, python: str = "", *, any_size: bool
) -> list[Problem]:
    """Return the problems of a suite, from `folder` or from a package below `packages`.

    Parameters
    ----------
    manifests
        Folder that may hold `NAME.json`, a list of ids, or `NAME_manifest.jsonl` with one `problem_id` a line.
    python
        Interpreter that has what makes tasks; empty: rlbox's own.
    any_size
        A set of another size than the suite's is taken, too.
    """
    path = folder / suite.file
    if suite.package and packages is not None and not path.is_file():
        path = packages / suite.file
    rows = generate_tasks(suite.make, python) if suite.make else read_problem_rows(path)
    found = parse_problems(rows, suite.asking)
    return select_problems(suite, found, list(_manifest(suite.name, manifests)), any_size=any_size)


def generate_tasks(make: Sequence[GeneratedTasks], python: str) -> Iterator[dict[str, Any]]:
    """Yield the tasks that reasoning-gym makes; `ProblemError` where it is missing or makes none."""
    asked = json.dumps([one.model_dump(mode="json") for one in make])
    command = Command(argv=(python or sys.executable, "-W", "ignore", str(GYM_MAKE)), timeout_s=_MAKING_S)
    try:
        done = run_command(command, asked)
    except RlboxError as error:
        raise ProblemError(error.what) from error
    if done.exit_code:
        told = (done.stderr.strip().splitlines() or [""])[-1]
        raise ProblemError(
            _("reasoning-gym makes no tasks with {argv}: {told}").format(argv=command.argv[0], told=told)
        )
    for line in done.stdout.splitlines():
        yield _row(GYM_MAKE, 0, line.encode())


def read_problem_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines, packed by gzip or not; `ProblemError` names the line that is none."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            size = 0
            for number, line in enumerate(stream, start=1):
                size += len(line)
                if size > _MOST:
                    raise ProblemError(_("{path}: more than {most}").format(path=path, most=size_text(_MOST)))
                if line.strip():
                    yield _row(path, number, line)
    except FileNotFoundError as error:
        raise ProblemError(_("{path} is missing: bring the raw problem sets (P165)").format(path=path)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise ProblemError(_("{path} cannot be read: {error}").format(path=path, error=error)) from error


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ProblemError(
            _("{path}:{number}: no JSON: {error}").format(path=path, number=number, error=error)
        ) from error
    if not isinstance(row, dict):
        raise ProblemError(_("{path}:{number}: a row is an object").format(path=path, number=number))
    return row


def _manifest(name: str, folder: Path) -> Iterator[str]:
    whole, lines = folder / f"{name}.json", folder / f"{name}_manifest.jsonl"
    if whole.is_file():
        names = parse_json(whole.read_bytes())
        if not isinstance(names, list):
            raise ProblemError(_("{whole} is no list of ids").format(whole=whole))
        yield from map(str, names)
    elif lines.is_file():
        for row in read_problem_rows(lines):
            yield str(row.get("problem_id") or row.get("task_id") or "")


SHIPPED_SUITES = Path(__file__).resolve().parent / "suites"


def load_suites(names: Sequence[str], own: Path | None = None) -> list[Suite]:
    """Return suites by name or path of a TOML file; `ProblemError` where one is missing or none."""
    return [_load(name, own) for name in names]


def list_suites(own: Path | None = None) -> list[str]:
    """Return the names of all suites that there are."""
    folders = [SHIPPED_SUITES, *([own] if own else [])]
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def load_suite_problems(
    names: Sequence[str],
    problems: Path,
    *,
    own: Path | None = None,
    packages: Path | None = None,
    manifests: Path = Path(),
    python: str = "",
    any_size: bool = False,
) -> list[tuple[Suite, list[Problem]]]:
    """Return suites by name with their problems; see `load_problems`."""
    return [
        (suite, load_problems(suite, problems, packages, manifests, python, any_size=any_size))
        for suite in load_suites(names, own)
    ]


def _load(name: str, own: Path | None) -> Suite:
    places = (
        [Path(name)]
        if name.endswith(".toml")
        else [folder / f"{name}.toml" for folder in (own, SHIPPED_SUITES) if folder]
    )
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise ProblemError(
            _("there is no suite {name!r}; there are {suite_names}").format(
                name=name, suite_names=", ".join(list_suites(own))
            )
        )
    try:
        return Suite.model_validate({"name": path.stem, **toml_table(path.read_text("utf-8"))})
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors())
        raise ProblemError(f"{path}: {told}") from error
    except ValueError as error:
        raise ProblemError(_("{path}: {error}").format(path=path, error=error)) from error
