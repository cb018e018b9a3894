"""Problem sets: HumanEval, MBPP and CodeContests rows as they are published, read into one form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft import eval_config


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One task. `runs` are (standard input, expected output); without one, `check` tests what the answer defines.

    `before` is what the answer is written to stand behind: imports of an MBPP task, the head of a HumanEval function.
    `names` are the functions that are tested; empty: those that `check` calls and nobody else defines.
    """

    id: str
    ask: str
    runs: tuple[tuple[str, str], ...] = ()
    check: str = ""
    before: str = ""
    names: tuple[str, ...] = ()


class ProblemError(Exception):
    """A file of problems is missing, broken, or has another number of rows than its set."""


def load_set(name: str, raw: Path, manifests: Path, *, any_size: bool = False) -> list[Problem]:
    """Return the problems of the set `name`, in the order of its manifest, or of its raw file without one.

    Parameters
    ----------
    manifests
        Folder that may hold `NAME.json`, a list of ids, or `NAME_manifest.jsonl` with one `problem_id` a line.
    any_size
        A set of another size than the seed's is taken, too.
    """
    file, size = eval_config.SETS[name]
    rows = {problem.id: problem for problem in map(read_problem, _rows(raw / file))}
    wanted = list(_manifest(name, manifests)) or list(rows)
    if missing := [key for key in wanted if key not in rows]:
        raise ProblemError(f"{raw / file} has no row {missing[0]!r} of the manifest ({len(missing)} are missing)")
    if len(wanted) != size and not any_size:
        raise ProblemError(f"{raw / file}: {len(wanted)} problems, {name} has {size}; upload the whole file (P166)")
    return [rows[key] for key in wanted]


def read_problem(row: Mapping[str, Any]) -> Problem:
    """Return one row of HumanEval, MBPP or CodeContests as a problem."""
    try:
        if "entry_point" in row:
            return _humaneval(row)
        if "test_list" in row:
            return _mbpp(row)
        return _codecontests(row)
    except (KeyError, TypeError) as error:
        raise ProblemError(f"a row with the keys {', '.join(row)} is no problem: {error!r}") from error


def _humaneval(row: Mapping[str, Any]) -> Problem:
    check = f"{row['test']}\ncheck({row['entry_point']})\n"
    ask = eval_config.ASK_FUNCTION.format(statement=row["prompt"])
    return Problem(id=str(row["task_id"]), ask=ask, check=check, before=row["prompt"], names=(row["entry_point"],))


def _mbpp(row: Mapping[str, Any]) -> Problem:
    tests = "\n".join(row["test_list"])
    statement = f"{row.get('text') or row['prompt']}\n\nIt must pass:\n{tests}"
    before = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code") or ""])
    ask = eval_config.ASK_FUNCTION.format(statement=statement)
    return Problem(id=str(row["task_id"]), ask=ask, check=tests + "\n", before=before)


def _codecontests(row: Mapping[str, Any]) -> Problem:
    runs: list[tuple[str, str]] = []
    for kind in ("public_tests", "private_tests", "generated_tests"):
        part = row.get(kind) or {"input": (), "output": ()}
        runs += zip(part["input"], part["output"], strict=True)
    if not runs:
        raise KeyError("no tests")
    ask = eval_config.ASK_PROGRAM.format(statement=row["description"])
    name = str(row.get("problem_id") or row["name"])
    return Problem(id=name, ask=ask, runs=tuple(runs[: eval_config.MAX_TESTS]))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError as error:
        raise ProblemError(f"{path} is missing: upload the raw problem sets (P165)") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ProblemError(f"{path}:{number}: no JSON: {error}") from error


def _manifest(name: str, folder: Path) -> Iterator[str]:
    whole, lines = folder / f"{name}.json", folder / f"{name}_manifest.jsonl"
    if whole.is_file():
        yield from map(str, json.loads(whole.read_text()))
    elif lines.is_file():
        yield from (str(row.get("problem_id") or row["task_id"]) for row in _rows(lines))
