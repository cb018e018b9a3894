"""Suites: the schema of their TOML files, and their problems."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, StringConstraints, ValidationError

from rlbox.config.schema import SpecModel
from rlbox.errors import RlboxError
from rlbox.evaluation.problems import (
    ANSWER_PROMPT,
    FUNCTION_PROMPT,
    PROGRAM_PROMPT,
    Problem,
    ProblemError,
    PromptTemplates,
    Scorer,
    parse_problems,
)
from rlbox.foreign import decode_toml, parse_json
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.values import Command

SHIPPED_SUITES = Path(__file__).resolve().parent / "suites"
_TASK_GENERATOR = Path(__file__).resolve().parent / "programs/generate_tasks.py"
_GENERATE_TIMEOUT_S = 600.0


class Decoding(SpecModel):
    """How answers are sampled; the defaults are one greedy answer per problem."""

    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(2048, ge=1, description="new tokens of an answer, at most")
    stop: tuple[str, ...] = ()
    samples: int = Field(1, ge=1, description="answers to each problem; more than one wants a temperature")
    seed: int = Field(0, ge=0, description="of the first answer to a problem; the next ones count on from it")


class RunLimits(SpecModel):
    """What a program may take; the defaults are those of EVAL@1."""

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
    judge: Scorer = Field("", description="who compares answers that are no code")
    make: tuple[GeneratedTasks, ...] = Field((), description="tasks that are made instead of read")
    decoding: Decoding = Decoding()
    limits: RunLimits = RunLimits()


class SuiteProblems(NamedTuple):
    suite: Suite
    problems: Sequence[Problem]


class ProblemSources(NamedTuple):
    """Where problems come from.

    `directory` has raw sets of problems, `site_packages` (of the stack) those that Python packages carry.
    `manifest_directory` may have `NAME.json`, a list of ids, or `NAME_manifest.jsonl` with one `problem_id` a line,
    which choose problems. `python` is the interpreter that has reasoning-gym (empty: rlbox's own). `allow_any_count`:
    sets of another size than their suite's are taken, too.
    """

    directory: Path
    site_packages: Path | None = None
    manifest_directory: Path = Path()
    python: str = ""
    allow_any_count: bool = False


def list_suites(additional_directory: Path | None = None) -> list[str]:
    """Return the names of the suites that rlbox brings, and those in a directory."""
    directories = [SHIPPED_SUITES, *([additional_directory] if additional_directory else [])]
    return sorted({path.stem for directory in directories for path in directory.glob("*.toml")})


def load_suite(name: str, directory: Path | None = None) -> Suite:
    """Return a suite by name, or by the path of its TOML file; `ProblemError` where it is missing or none."""
    directories = [directory] if directory else []
    paths = [path / f"{name}.toml" for path in (*directories, SHIPPED_SUITES)]
    path = next((path for path in ([Path(name)] if name.endswith(".toml") else paths) if path.is_file()), None)
    if path is None:
        raise ProblemError(
            _("there is no suite {name!r}; there are {suite_names}").format(
                name=name, suite_names=", ".join(list_suites(directory))
            )
        )
    try:
        return Suite.model_validate({"name": path.stem, **decode_toml(path.read_text("utf-8"))})
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors())
        raise ProblemError(f"{path}: {details}") from error
    except ValueError as error:
        raise ProblemError(_("{path}: {error}").format(path=path, error=error)) from error


def load_suites_with_problems(
    names: Sequence[str], sources: ProblemSources, directory: Path | None = None
) -> list[SuiteProblems]:
    """Return suites, by name or TOML file, with their problems; `ProblemError` where one or the other is missing."""
    suites = [load_suite(name, directory) for name in names]
    return [SuiteProblems(suite, _load_problems(suite, sources)) for suite in suites]


def _load_problems(suite: Suite, sources: ProblemSources) -> list[Problem]:
    path = sources.directory / suite.file
    if suite.package and sources.site_packages is not None and not path.is_file():
        path = sources.site_packages / suite.file
    rows = _generate_tasks(suite.make, sources.python) if suite.make else _read_problem_rows(path)
    templates = PromptTemplates(program=suite.ask_program, function=suite.ask_function, answer=suite.ask_answer)
    problems = parse_problems(rows, templates, suite.judge)
    return _select_problems(
        suite, problems, list(_read_manifest(suite.name, sources.manifest_directory)), sources.allow_any_count
    )


def _select_problems(
    suite: Suite, problems: Mapping[str, Problem], chosen_ids: Sequence[str], any_count: bool
) -> list[Problem]:
    """Return the problems that a manifest names, in its order; of an empty one, all.

    `ProblemError` where one is missing, none is left, or there are more or fewer than the suite says.
    """
    names = list(chosen_ids) or list(problems)
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
    if suite.rows and len(names) != suite.rows and not any_count:
        raise ProblemError(
            _("{suite}: {count} problems, expected {rows}; put the complete file there").format(
                suite=suite.name, count=len(names), rows=suite.rows
            )
        )
    return [problems[name] for name in names]


def _generate_tasks(datasets: Sequence[GeneratedTasks], python: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that reasoning-gym makes; `ProblemError` where it is missing or makes none."""
    request = json.dumps([tasks.model_dump(mode="json") for tasks in datasets])
    argv = (python or sys.executable, "-W", "ignore", str(_TASK_GENERATOR))
    try:
        result = run_command(Command(argv=argv, timeout_s=_GENERATE_TIMEOUT_S), request)
    except RlboxError as error:
        raise ProblemError(error.what) from error
    if result.exit_code:
        last = (result.stderr.strip().splitlines() or [""])[-1]
        raise ProblemError(_("reasoning-gym makes no tasks with {argv}: {told}").format(argv=argv[0], told=last))
    for number, line in enumerate(result.stdout.splitlines(), start=1):
        yield _parse_row(_TASK_GENERATOR, number, line.encode())


def _read_problem_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines, packed by gzip or not; `ProblemError` names the line that is none."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield _parse_row(path, number, line)
    except FileNotFoundError as error:
        raise ProblemError(_("{path} is missing: bring the raw problem sets").format(path=path)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise ProblemError(_("{path} cannot be read: {error}").format(path=path, error=error)) from error


def _parse_row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ProblemError(
            _("{path}:{number}: no JSON: {error}").format(path=path, number=number, error=error)
        ) from error
    if not isinstance(row, dict):
        raise ProblemError(_("{path}:{number}: a row is an object").format(path=path, number=number))
    return row


def _read_manifest(suite: str, directory: Path) -> Iterator[str]:
    path, lines = directory / f"{suite}.json", directory / f"{suite}_manifest.jsonl"
    if path.is_file():
        names = parse_json(path.read_bytes())
        if not isinstance(names, list):
            raise ProblemError(_("{whole} is not a list of ids").format(whole=path))
        yield from map(str, names)
    elif lines.is_file():
        for row in _read_problem_rows(lines):
            yield str(row.get("problem_id") or row.get("task_id") or "")
