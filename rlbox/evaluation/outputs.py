"""The files of an evaluation (P186): those of one checkpoint, and the history and choice of all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.evaluation.evaluate import Rows
from rlbox.evaluation.lock import EvaluationLock
from rlbox.evaluation.result import EvaluationResult, read_result
from rlbox.evaluation.results import ACCEPTED, RUNS, figure, set_scores
from rlbox.evaluation.winner import HISTORY
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.files import write_atomic

SUMMARY, RUN = "summary.json", "run_info.json"
_QA = 20
"""Answers of each suite that are kept together to be read."""


def make_result(name: str, step: int, lock: EvaluationLock, rows: Rows) -> EvaluationResult:
    """Return the result of one checkpoint."""
    return EvaluationResult(
        name=name,
        step=step,
        lock=lock,
        scores={suite: set_scores(of) for suite, of in rows.items()},
        by_problem={suite: {kind: figure(of, kind) for kind in (ACCEPTED, RUNS)} for suite, of in rows.items()},
    )


def write_outputs(folder: Path, result: EvaluationResult, rows: Rows, run: Mapping[str, Any]) -> None:
    """Write what belongs to one checkpoint; `run` is the machine and the time, which decide nothing."""
    flat = {
        f"{suite}/{key}": value
        for suite, row in result.scores.items()
        for key, value in row.items()
        if isinstance(value, (int, float))
    }
    write_json(folder / "metrics.json", flat)
    write_json(folder / "eval_info.json", result.lock.as_json())
    write_json(folder / RUN, dict(run))
    for suite, of in rows.items():
        lines = (json.dumps(row, ensure_ascii=False) for row in of[:_QA])
        (folder / "qa_logs").mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "qa_logs" / f"{suite}.jsonl", _bytes("".join(f"{line}\n" for line in lines)))
    write_json(folder / SUMMARY, result.as_json())


def append_history(out: Path, result: EvaluationResult, began: str) -> None:
    """Append one evaluation to the history, in one write."""
    row = {"step": result.step, "name": result.name, "lock": result.lock.digest, "began": began}
    with (out / HISTORY).open("a") as stream:
        stream.write(json.dumps(row | {"scores": {name: dict(of) for name, of in result.scores.items()}}) + "\n")


def read_summary(path: Path) -> EvaluationResult:
    """Return the result that a file holds; `ValueError` names the file where it is none."""
    try:
        return read_result(parse_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(_("{path}: {error}").format(path=path, error=error)) from error


def export_of(folder: Path) -> str:
    """Return the export that the result in `folder` is of, as it was when it was judged; empty where that is lost."""
    try:
        return str(parse_json((folder / RUN).read_bytes())["export"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def read_results(out: Path) -> list[EvaluationResult]:
    """Return the result of each checkpoint below `out`, by step."""
    found = [read_summary(path) for path in sorted(out.glob(f"*/{SUMMARY}"))]
    return sorted(found, key=lambda one: (one.step, one.name))


def write_json(path: Path, data: Any) -> None:
    """Write `data`; the file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, _bytes(json.dumps(data, indent=1, ensure_ascii=False) + "\n"))


def _bytes(text: str) -> bytes:
    """Return text as it is written: half a character, which an answer may hold, becomes a question mark."""
    return text.encode("utf-8", "replace")
