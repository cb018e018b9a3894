"""Read suites, their problems and manifests from files."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlbox.amounts import size_text
from rlbox.errors import RlboxError
from rlbox.evaluation.problem import EvalProblem, ProblemError, read_problems
from rlbox.evaluation.suite import MadeTasks, Suite, chosen_problems
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.values import Command

GYM_MAKE = Path(__file__).resolve().parent / "programs/gym_make.py"
_MAKING_S = 600.0
_MOST = 4 << 30
"""Bytes of an unpacked set of problems; the largest of the seed's has 1.5 GB."""


def load_problems(
    suite: Suite, folder: Path, packages: Path | None, manifests: Path, python: str = "", *, any_size: bool
) -> list[EvalProblem]:
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
    rows = made_rows(suite.make, python) if suite.make else read_rows(path)
    found = read_problems(rows, suite.asking)
    return chosen_problems(suite, found, list(_manifest(suite.name, manifests)), any_size=any_size)


def made_rows(make: Sequence[MadeTasks], python: str) -> Iterator[dict[str, Any]]:
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


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
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
        for row in read_rows(lines):
            yield str(row.get("problem_id") or row.get("task_id") or "")
