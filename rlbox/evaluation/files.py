"""The files of an evaluation: one per answer, those of a result, the history, the choice."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.evaluation.lock import EvaluationLock
from rlbox.evaluation.result import AnswerRecord, EvaluationResult, RecordsBySuite, parse_result
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.files import write_atomic
from rlbox.system.json_files import read_json_object_or_empty

HISTORY_FILE, BEST_FILE = "eval_history.jsonl", "best_checkpoint.json"
"""What a gate asks for in a directory of results."""
SUMMARY_FILE, RUN_INFO_FILE = "summary.json", "run_info.json"
_ANSWER_FIELDS = ("problem", "number", "ask", "text", "finish", "tokens")
_SAMPLE_ANSWERS = 20


def compute_cache_key_by_suite(lock: EvaluationLock) -> dict[str, str]:
    """Return what answers of each suite are stored under: the lock of that suite, and the weights."""
    weights = lock.subject.get("weights", "")
    return {suite: f"{lock.filter_suites([suite]).digest_without_weights}:{weights}" for suite in lock.parts["suites"]}


class AnswerStore:
    """One file per answer, in `per_problem` of a result's directory; a record of another key counts as missing."""

    def __init__(self, directory: Path, keys: Mapping[str, str]) -> None:
        self._directory, self._keys = directory / "per_problem", keys

    def read_answer_dropping_sandbox_failure(self, suite: str, problem: str, sample_index: int) -> AnswerRecord | None:
        """Return a stored record; None where it is missing, torn or another's.

        A record without `outcome` is an answer that was not graded, or whose sandbox failed: it is not asked for again.
        """
        try:
            record = parse_untrusted_json(self._path(suite, problem, sample_index).read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or (record.get("key"), record.get("problem")) != (
            self._keys.get(suite),
            problem,
        ):
            return None
        if record.get("outcome") == "sandbox":
            return {name: record[name] for name in _ANSWER_FIELDS if name in record}
        return record

    def replace_answer_with_cache_key(self, suite: str, record: AnswerRecord) -> AnswerRecord:
        path = self._path(suite, record["problem"], record["number"])
        record = {**record, "key": self._keys[suite]}
        write_json(path, record)
        return record

    def _path(self, suite: str, problem: str, number: int) -> Path:
        """Names of problems are others': a name that is changed or cut carries the digest of the whole one."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", problem)[:100].lstrip(".") or "_"
        if name != problem:
            name += "-" + hashlib.sha256(problem.encode("utf-8", "replace")).hexdigest()[:10]
        return self._directory / suite / f"{name}.{number}.json"


def write_result_with_sample_answers(
    directory: Path, result: EvaluationResult, records: RecordsBySuite, run_info: Mapping[str, Any]
) -> None:
    """Write the files of one checkpoint; `run_info` is the machine and the time, which decide nothing."""
    metrics = {
        f"{suite}/{name}": value
        for suite, scores in result.scores.items()
        for name, value in scores.items()
        if isinstance(value, (int, float))
    }
    write_json(directory / "metrics.json", metrics)
    write_json(directory / "eval_info.json", result.lock.as_json())
    write_json(directory / RUN_INFO_FILE, dict(run_info))
    for suite, rows in records.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[:_SAMPLE_ANSWERS])
        _write_text(directory / "qa_logs" / f"{suite}.jsonl", lines)
    write_json(directory / SUMMARY_FILE, result.as_json())


def append_scores_to_history(out_dir: Path, result: EvaluationResult, started_at: str) -> None:
    row = {"step": result.step, "name": result.name, "lock": result.lock.digest_without_weights, "began": started_at}
    with (out_dir / HISTORY_FILE).open("a") as stream:
        stream.write(
            json.dumps(row | {"scores": {suite: dict(scores) for suite, scores in result.scores.items()}}) + "\n"
        )


def read_result(path: Path) -> EvaluationResult:
    """Return the result that a file holds; `ValueError` names the file where it is none."""
    try:
        return parse_result(parse_untrusted_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(_("{path}: {error}").format(path=path, error=error)) from error


def read_results_sorted_by_step(out: Path) -> list[EvaluationResult]:
    results = [read_result(path) for path in sorted(out.glob(f"*/{SUMMARY_FILE}"))]
    return sorted(results, key=lambda result: (result.step, result.name))


def read_result_export_path_or_empty(directory: Path) -> str:
    """Return the path of the export that a result is of, as it was then; empty where that is lost."""
    return str(read_json_object_or_empty(directory / RUN_INFO_FILE, follow_links=True).get("export") or "")


def write_json(path: Path, data: Any) -> None:
    _write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode("utf-8", "replace"))  # an answer may hold half a character
