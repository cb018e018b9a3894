"""The files of an evaluation: one per answer, those of a result, the history, the choice."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rlbox.evaluation.lock import EvaluationLock
from rlbox.evaluation.result import ACCEPTED, RUNS, EvaluationResult, collect_metric, parse_result, score_suite
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.files import write_atomic

HISTORY, BEST = "eval_history.jsonl", "best_checkpoint.json"
"""What a gate asks for in a folder of results (P186)."""


def find_result_directories(plan: Mapping[str, Any]) -> list[str]:
    """Return the folders of results of a run, as its processes see them: where a gate of its plan asks for them.

    `plan` is `plan.json`; what is no plan has none.
    """
    found: list[str] = []
    for stage in _rows(plan.get("stages")):
        for file in _rows(stage.get("files")):
            path = PurePosixPath(str(file.get("path", "")))
            if path.name in (HISTORY, BEST):
                found.append(str(path.parent))
    return list(dict.fromkeys(found))


def read_data_path(plan: Mapping[str, Any]) -> str:
    """Return the data disk as the processes of a run see it; empty where its plan does not say."""
    paths = plan.get("paths")
    return str(paths.get("data") or "") if isinstance(paths, Mapping) else ""


def parse_best(document: Any) -> tuple[str, str]:
    """Return name and export of `best_checkpoint.json`; `ValueError` where it is none, or does not know the export."""
    if not isinstance(document, Mapping) or not document.get("name") or not document.get("model"):
        raise ValueError(_("it does not say which export is the best"))
    return str(document["name"]), str(document["model"])


def relative_to_disk(path: str, disks: Sequence[str]) -> str:
    """Return a path as it is below the data disk, which has one of some names; `ValueError` when it is below none."""
    whole = PurePosixPath(path)
    for disk in disks:
        if disk and ".." not in whole.parts and whole.is_relative_to(disk):
            return str(whole.relative_to(disk))
    raise ValueError(_("{path} is not on the data disk {disk}").format(path=path, disk=disks[-1]))


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


AnswerRecord = dict[str, Any]
AnswerRecords = dict[str, list[AnswerRecord]]
"""The rows of each suite, in the order of its problems and answers."""
_MOST = 64 << 20
ANSWER_FIELDS = ("problem", "number", "ask", "text", "finish", "tokens")
"""What a row has of the answer; the rest is its verdict."""


def make_answer_keys(lock: EvaluationLock) -> dict[str, str]:
    """Return what the rows of each suite are kept under: what decides their scores, and the weights."""
    weights = lock.subject.get("weights", "")
    return {suite: f"{lock.of([suite]).digest}:{weights}" for suite in lock.parts["suites"]}


class AnswerFiles:
    """The rows of one checkpoint below `folder`; a row of another key than its suite's counts as not there."""

    def __init__(self, folder: Path, keys: Mapping[str, str]) -> None:
        self.folder, self._keys = folder / "per_problem", keys

    def read(self, suite: str, problem: str, number: int) -> dict[str, Any] | None:
        """Return what was kept under this key; nothing where it is torn or another's.

        A row without `outcome` is an answer that was not judged, or whose sandbox failed: it is not asked for again.
        """
        path = self._path(suite, problem, number)
        try:
            if path.stat().st_size > _MOST:
                return None
            found = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        known = isinstance(found, dict) and (found.get("key"), found.get("problem")) == (self._keys.get(suite), problem)
        if not known:
            return None
        return (
            {name: found[name] for name in ANSWER_FIELDS if name in found}
            if found.get("outcome") == "sandbox"
            else found
        )

    def write(self, suite: str, row: dict[str, Any]) -> dict[str, Any]:
        """Keep a row and return it with its key."""
        path = self._path(suite, row["problem"], row["number"])
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {**row, "key": self._keys[suite]}
        write_atomic(path, json.dumps(kept, indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        return kept

    def all_of(self, problem: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a suite and a row for each answer to a problem, whatever its number."""
        for suite in self._keys:
            number = 0
            while row := self.read(suite, problem, number):
                yield suite, row
                number += 1

    def _path(self, suite: str, problem: str, number: int) -> Path:
        """Names of problems are others': a name that is changed or cut carries the digest of the whole one."""
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", problem)[:100].lstrip(".") or "_"
        mark = "" if plain == problem else "-" + hashlib.sha256(problem.encode("utf-8", "replace")).hexdigest()[:10]
        return self.folder / suite / f"{plain}{mark}.{number}.json"


SUMMARY, RUN = "summary.json", "run_info.json"
_QA = 20
"""Answers of each suite that are kept together to be read."""


def build_result(name: str, step: int, lock: EvaluationLock, rows: AnswerRecords) -> EvaluationResult:
    return EvaluationResult(
        name=name,
        step=step,
        lock=lock,
        scores={suite: score_suite(of) for suite, of in rows.items()},
        by_problem={suite: {kind: collect_metric(of, kind) for kind in (ACCEPTED, RUNS)} for suite, of in rows.items()},
    )


def write_result_files(folder: Path, result: EvaluationResult, rows: AnswerRecords, run: Mapping[str, Any]) -> None:
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
        return parse_result(parse_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(_("{path}: {error}").format(path=path, error=error)) from error


def read_export_path(folder: Path) -> str:
    """Return the export that the result in `folder` is of, as it was when it was judged; empty where that is lost."""
    try:
        return str(parse_json((folder / RUN).read_bytes())["export"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def read_results(out: Path) -> list[EvaluationResult]:
    found = [read_summary(path) for path in sorted(out.glob(f"*/{SUMMARY}"))]
    return sorted(found, key=lambda one: (one.step, one.name))


def write_json(path: Path, data: Any) -> None:
    """Write `data`; the file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, _bytes(json.dumps(data, indent=1, ensure_ascii=False) + "\n"))


def _bytes(text: str) -> bytes:
    """Return text as it is written: half a character, which an answer may hold, becomes a question mark."""
    return text.encode("utf-8", "replace")
