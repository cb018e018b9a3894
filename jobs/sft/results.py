"""The files of an evaluation: one per problem, the scores of a checkpoint, the history of all (P186)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sft import eval_config

HISTORY = "eval_history.jsonl"
BEST = "best_checkpoint.json"
_SHOWN = ("codecontests_valid", "mbpp_reg", "humaneval")


def write_json(path: Path, data: Any) -> None:
    """Write `data` by rename, so that the file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    part.rename(path)


def problem_file(folder: Path, name: str, problem: str) -> Path:
    """Return where the result of one problem lies."""
    return folder / "per_problem" / name / (re.sub(r"[^A-Za-z0-9._-]", "_", problem)[:150] + ".json")


def read_problem(path: Path, key: str) -> dict[str, Any] | None:
    """Return a result that was made with the same parameters from the same weights, or nothing."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if found.get("key") == key and found.get("outcome") != "sandbox" else None


def scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of one problem set; shares are of all its problems.

    `accepted_at_1`: every run right. `exec_success_rate`: every run ended by itself with exit status 0.
    """
    found = list(rows)
    count = len(found) or 1
    outcomes: dict[str, int] = {}
    for row in found:
        outcomes[row["outcome"]] = outcomes.get(row["outcome"], 0) + 1
    return {
        "problems": len(found),
        "accepted_at_1": sum(row["outcome"] == "accepted" for row in found) / count,
        "exec_success_rate": sum(bool(row["executed"]) for row in found) / count,
        "pass_ratio": sum(row["passed"] / max(1, row["runs"]) for row in found) / count,
        "truncated": sum(row["finish"] == "length" for row in found) / count,
        "mean_tokens": sum(row["tokens"] for row in found) / count,
        "outcomes": dict(sorted(outcomes.items())),
    }


def append_history(out: Path, row: Mapping[str, Any]) -> None:
    """Append one evaluation to the history, in one write."""
    with (out / HISTORY).open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def read_history(out: Path) -> list[dict[str, Any]]:
    """Return the last evaluation of each step, by step; those with other parameters than today's are left out."""
    path = out / HISTORY
    lines = path.read_text().splitlines() if path.is_file() else []
    latest: dict[int, dict[str, Any]] = {}
    for line in lines:
        row = json.loads(line)
        if row["config"] == eval_config.digest():
            latest[row["step"]] = row
    return [latest[step] for step in sorted(latest)]


def table(history: Iterable[Mapping[str, Any]]) -> str:
    """Return the comparison of all checkpoints, percent with two decimals, N/A for what was not measured (P188)."""
    lines = ["Step | CC_valid exec | CC_valid accepted@1 | MBPP_reg accepted@1 | HumanEval accepted@1"]
    lines.append("-----|---------------|---------------------|---------------------|---------------------")
    for row in history:
        cells = [
            _percent(row, "codecontests_valid", "exec_success_rate").rjust(14),
            *(
                _percent(row, name, "accepted_at_1").rjust(20)
                for name in ("codecontests_valid", "mbpp_reg", "humaneval")
            ),
        ]
        lines.append(f"{row['step']:>4} |" + " |".join(cells))
    return "\n".join(lines)


def _percent(row: Mapping[str, Any], name: str, figure: str) -> str:
    value = (row["scores"].get(name) or {}).get(figure)
    return "N/A" if value is None else f"{value:.2%}"
