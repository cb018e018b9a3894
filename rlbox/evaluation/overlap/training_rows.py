"""The rows of training data: JSON lines, packed by gzip or not, and parquet by an interpreter that has pyarrow."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.evaluation.overlap.grams import Overlap, texts_of
from rlbox.evaluation.problem import EvalProblem, ProblemError
from rlbox.evaluation.problems import read_rows
from rlbox.foreign import parse_json
from rlbox.system.command import PIPE, start_command
from rlbox.system.files import sha256_file
from rlbox.values import Command

PROGRAM = Path(__file__).resolve().parent / "programs/parquet_rows.py"


def find_overlap(
    suites: Mapping[str, Sequence[EvalProblem]], files: Sequence[Path], python: str
) -> dict[str, dict[str, Any]]:
    """Return, suite by suite, the problems that stand in the training data, and the files by content.

    Raises
    ------
    ProblemError
        A file is missing, is none, or no interpreter can read it.
    """
    found = Overlap(suites)
    for path in files:
        for row in _parquet(path, python) if path.suffix == ".parquet" else read_rows(path):
            found.read(texts_of(row))
    sums = [{"file": str(path), "sha256": sha256_file(path)} for path in files]
    return {suite: {**found.of(suite), "training": sums} for suite in suites}


def _parquet(path: Path, python: str) -> Iterator[dict[str, Any]]:
    own = python or sys.executable
    if not path.is_file():
        raise ProblemError(f"{path} is missing")
    with tempfile.TemporaryFile() as errors:
        command = Command(argv=(own, "-W", "ignore", str(PROGRAM), str(path.absolute())))
        try:
            process = start_command(command, stdout=PIPE, stderr=errors, dies_with_us=True)
        except OSError as error:
            raise ProblemError(f"{own}: {error.strerror}") from error
        with process:
            yield from (parse_json(line) for line in process.stdout or ())
        if process.returncode:
            errors.seek(0)
            told = (errors.read().decode("utf-8", "replace").strip().splitlines() or [""])[-1]
            raise ProblemError(f"{path} cannot be read with {own}: {told}")
