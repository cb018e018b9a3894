"""Read suites, their problems and manifests from files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlbox.amounts import size_text
from rlbox.evaluation.problem import EvalProblem, ProblemError, read_problems
from rlbox.evaluation.suite import Suite, chosen_problems
from rlbox.foreign import parse_json

_MOST = 4 << 30
"""Bytes of an unpacked set of problems; the largest of the seed's has 1.5 GB."""


def load_problems(
    suite: Suite, folder: Path, packages: Path | None, manifests: Path, *, any_size: bool
) -> list[EvalProblem]:
    """Return the problems of a suite, from `folder` or from a package below `packages`.

    Parameters
    ----------
    manifests
        Folder that may hold `NAME.json`, a list of ids, or `NAME_manifest.jsonl` with one `problem_id` a line.
    any_size
        A set of another size than the suite's is taken, too.
    """
    path = folder / suite.file
    if suite.package and packages is not None and not path.is_file():
        path = packages / suite.file
    found = read_problems(read_rows(path), suite.ask_program, suite.ask_function)
    return chosen_problems(suite, found, list(_manifest(suite.name, manifests)), any_size=any_size)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines, packed by gzip or not; `ProblemError` names the line that is none."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            size = 0
            for number, line in enumerate(stream, start=1):
                size += len(line)
                if size > _MOST:
                    raise ProblemError(f"{path}: more than {size_text(_MOST)}")
                if line.strip():
                    yield _row(path, number, line)
    except FileNotFoundError as error:
        raise ProblemError(f"{path} is missing: bring the raw problem sets (P165)") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ProblemError(f"{path} cannot be read: {error}") from error


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ProblemError(f"{path}:{number}: no JSON: {error}") from error
    if not isinstance(row, dict):
        raise ProblemError(f"{path}:{number}: a row is an object")
    return row


def _manifest(name: str, folder: Path) -> Iterator[str]:
    whole, lines = folder / f"{name}.json", folder / f"{name}_manifest.jsonl"
    if whole.is_file():
        names = parse_json(whole.read_bytes())
        if not isinstance(names, list):
            raise ProblemError(f"{whole} is no list of ids")
        yield from map(str, names)
    elif lines.is_file():
        for row in read_rows(lines):
            yield str(row.get("problem_id") or row.get("task_id") or "")
