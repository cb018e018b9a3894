"""Suites of problems: their TOML files, and their rows as the published sets have them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints, ValidationError

from rlbox.config.schema import SpecModel
from rlbox.foreign import parse_untrusted_json, parse_untrusted_toml
from rlbox.i18n import _

SHIPPED_SUITES = Path(__file__).resolve().parent / "suites"
PROGRAM_PROMPT = (
    "Solve the problem with a Python 3 program that reads standard input and writes standard output. "
    "Answer with one code block.\n\n{statement}"
)
FUNCTION_PROMPT = (
    "Write the Python 3 code that is asked for. Answer with one code block that holds all of it.\n\n{statement}"
)
ANSWER_PROMPT = "Solve the problem. Think step by step, then write the answer alone in \\boxed{{}}.\n\n{statement}"

Scorer = Literal["", "math"]
"""What compares answers with the expected one; empty: answers are code, which is run."""


class SuiteOrProblemError(ValueError):
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
        The expression that is right.
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
    def solution_as_model_answer_or_empty(self) -> str:
        return f"```python\n{self.solution}\n```" if self.solution and not self.scorer else self.solution

    def to_digest_input(self) -> dict[str, Any]:
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
    decoding: Decoding = Decoding()
    limits: RunLimits = RunLimits()


class SuiteProblems(NamedTuple):
    suite: Suite
    problems: Sequence[Problem]


class ProblemDirectories(NamedTuple):
    """Where problems come from.

    `directory` has raw sets of problems, `site_packages` (of the stack) those that Python packages carry.
    `problem_id_list_directory` may have `NAME.json`, a list of ids, or `NAME_manifest.jsonl` with one `problem_id` a
    line, which choose problems. `allow_any_count`: sets of another size than their suite's are taken, too.
    """

    directory: Path
    site_packages: Path | None = None
    problem_id_list_directory: Path = Path()
    allow_any_count: bool = False


def list_suite_names(additional_directory: Path | None = None) -> list[str]:
    directories = [SHIPPED_SUITES, *([additional_directory] if additional_directory else [])]
    return sorted({path.stem for directory in directories for path in directory.glob("*.toml")})


def load_suite(name_or_toml_path: str, directory: Path | None = None) -> Suite:
    """Return a suite by name, or by the path of its TOML file; `SuiteOrProblemError` where it is missing or none."""
    name, directories = name_or_toml_path, [directory] if directory else []
    paths = [path / f"{name}.toml" for path in (*directories, SHIPPED_SUITES)]
    path = next((path for path in ([Path(name)] if name.endswith(".toml") else paths) if path.is_file()), None)
    if path is None:
        raise SuiteOrProblemError(
            _("there is no suite {name!r}; there are {suite_names}").format(
                name=name, suite_names=", ".join(list_suite_names(directory))
            )
        )
    try:
        return Suite.model_validate({"name": path.stem, **parse_untrusted_toml(path.read_text("utf-8"))})
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors())
        raise SuiteOrProblemError(f"{path}: {details}") from error
    except ValueError as error:
        raise SuiteOrProblemError(_("{path}: {error}").format(path=path, error=error)) from error


def load_suites_with_problems(
    names: Sequence[str], sources: ProblemDirectories, directory: Path | None = None
) -> list[SuiteProblems]:
    suites = [load_suite(name, directory) for name in names]
    return [SuiteProblems(suite, _load_problems(suite, sources)) for suite in suites]


def _load_problems(suite: Suite, sources: ProblemDirectories) -> list[Problem]:
    """Return the problems that a manifest names, in its order; without one, all."""
    path = sources.directory / suite.file
    if suite.package and sources.site_packages is not None and not path.is_file():
        path = sources.site_packages / suite.file
    problems = _parse_problems(_read_rows(path), suite)
    names = list(_read_manifest(suite.name, sources.problem_id_list_directory)) or list(problems)
    if missing := [name for name in names if name not in problems]:
        raise SuiteOrProblemError(
            _("{suite} has no row {missing!r} of its manifest ({count} are missing)").format(
                suite=suite.name, missing=missing[0], count=len(missing)
            )
        )
    if len(set(names)) < len(names):
        raise SuiteOrProblemError(_("the manifest of {suite} names a problem twice").format(suite=suite.name))
    if not names:
        raise SuiteOrProblemError(_("{suite} has no problem").format(suite=suite.name))
    if suite.rows and len(names) != suite.rows and not sources.allow_any_count:
        raise SuiteOrProblemError(
            _("{suite}: {count} problems, expected {rows}; put the complete file there").format(
                suite=suite.name, count=len(names), rows=suite.rows
            )
        )
    return [problems[name] for name in names]


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines, gzipped or not; `SuiteOrProblemError` names the line that is none."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):  # noqa: B007 the errors name it
                if line.strip():
                    row = parse_untrusted_json(line)
                    if not isinstance(row, dict):
                        raise ValueError("a row is an object")
                    yield row
    except FileNotFoundError as error:
        raise SuiteOrProblemError(_("{path} is missing: bring the raw problem sets").format(path=path)) from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise SuiteOrProblemError(
            _("{path}:{number}: cannot be read: {error}").format(path=path, number=number, error=error)
        ) from error


def _read_manifest(suite: str, directory: Path) -> Iterator[str]:
    path, lines = directory / f"{suite}.json", directory / f"{suite}_manifest.jsonl"
    if path.is_file():
        names = parse_untrusted_json(path.read_bytes())
        if not isinstance(names, list):
            raise SuiteOrProblemError(_("{whole} is not a list of ids").format(whole=path))
        yield from map(str, names)
    elif lines.is_file():
        for row in _read_rows(lines):
            yield str(row.get("problem_id") or row.get("task_id") or "")


def _parse_problems(rows: Iterable[Mapping[str, Any]], suite: Suite) -> dict[str, Problem]:
    """Return problems by their id, in the order of the rows; two with one id, or one without a test, are refused."""
    problems: dict[str, Problem] = {}
    for row in rows:
        try:
            problem = _parse_problem(row, suite)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            keys = ", ".join(map(str, row))
            raise SuiteOrProblemError(
                _("a row with the keys {row} is not a problem: {error!r}").format(row=keys, error=error)
            ) from error
        if problem.id in problems:
            raise SuiteOrProblemError(_("two problems are called {id!r}").format(id=problem.id))
        if not problem.stdin_tests and not problem.test_code.strip() and not problem.expected:
            raise SuiteOrProblemError(_("problem {id!r} has no test").format(id=problem.id))
        problems[problem.id] = problem
    return problems


def _parse_problem(row: Mapping[str, Any], suite: Suite) -> Problem:
    if suite.judge:
        return _parse_question(row, suite.ask_answer, suite.judge)
    if "entry_point" in row:
        return _parse_humaneval(row, suite.ask_function)
    if "test_list" in row:
        return _parse_mbpp(row, suite.ask_function)
    return _parse_codecontests(row, suite.ask_program)


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
    """Parse the rows of MATH and of GSM8K, whose answer stands behind `####`."""
    statement = str(row.get("problem") or row["question"])
    answer = str(row["answer"]).rpartition("####")[2].strip()
    name = row.get("unique_id") or row.get("id") or hashlib.sha256(statement.encode()).hexdigest()[:12]
    return Problem(
        id=str(name),
        message=template.format(statement=statement),
        scorer=scorer,
        expected=answer,
        solution=f"\\boxed{{{answer}}}",
    )
