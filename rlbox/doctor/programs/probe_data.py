"""Run by the stack's own interpreter: look at training data, or write its first rows. Argument: what to do, as JSON.

{"tiny": FILE, "to": FILE, "rows": N}, or {"files": {"train": FILE, "val": FILE}, "rows": {"train": N}, "column": NAME}.
One JSON object comes out: what the files hold, what is wrong, what is worth knowing. Parquet needs pyarrow.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

CHAT_COLUMNS = ("messages", "prompt", "conversations")
MAX_NAMED_ROWS = 5  # of each kind of problem
Message = tuple[str, tuple[tuple[str, Any], ...]]
"""A text and its values, which rlbox translates."""
Report = dict[str, list[Message]]


def _(text: str, **values: Any) -> Message:
    return text, tuple(values.items())


def _open_parquet(path: str) -> Any:
    return importlib.import_module("pyarrow.parquet").ParquetFile(path)


def _read_rows(path: str) -> tuple[dict[str, str], Iterable[dict[str, Any]]]:
    if path.endswith(".jsonl"):
        with open(path, encoding="utf-8") as file:
            rows = [_parse_row(path, number, line) for number, line in enumerate(file, 1) if line.strip()]
        return {name: type(value).__name__ for name, value in rows[0].items()} if rows else {}, rows
    file = _open_parquet(path)
    columns = {field.name: str(field.type) for field in file.schema_arrow}
    return columns, (row for batch in file.iter_batches(batch_size=256) for row in batch.to_pylist())


def _parse_row(path: str, number: int, line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"{path}:{number}: a line is no JSON object")
    return row


def _find_chat_problem(chat: Any, trains: bool) -> Message | None:
    """Return what is wrong with a conversation: one to train on ends with an answer, a prompt with a question."""
    if not isinstance(chat, list) or not chat:
        return _("no conversation: a list of role and content is needed")
    if not all(isinstance(turn, dict) and "role" in turn and turn.get("content") is not None for turn in chat):
        return _("a turn lacks role or content")
    roles = [str(turn["role"]) for turn in chat]
    if set(roles) - {"system", "user", "assistant", "tool"}:
        return _("unknown roles: {roles}", roles=", ".join(roles))
    if "user" not in roles:
        return _("there is no turn of the user")
    if trains and roles[-1] != "assistant":
        return _("it does not end with the assistant's answer")
    if not trains and roles[-1] == "assistant":
        return _("the prompt ends with the assistant's answer already")
    if any(not str(turn["content"]).strip() and not turn.get("tool_calls") for turn in chat):
        return _("a turn is empty")
    return None


def _find_row_problem(row: dict[str, Any], column: str) -> Message | None:
    if column not in row:
        return _("it has no column {column}", column=column)
    problem = _find_chat_problem(row[column], column != "prompt")
    if column == "prompt" and not problem and not (row.get("reward_model") or {}).get("ground_truth"):
        return _("reward_model.ground_truth is missing, which the reward compares with")
    return problem


def _check_file(name: str, request: dict[str, Any], report: Report) -> list[str]:
    """Say what a file holds; return a key of each row."""
    columns, rows = _read_rows(request["files"][name])
    column = request["column"] or next((one for one in CHAT_COLUMNS if one in columns), "")
    keys: list[str] = []
    numbers_by_problem: dict[Message, list[int]] = {}
    for number, row in enumerate(rows):
        value = row.get(column, row)
        keys.append(hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest())
        if problem := column and _find_row_problem(row, column):
            numbers_by_problem.setdefault(problem, []).append(number)
    types = ", ".join(f"{one} ({kind})" for one, kind in columns.items())
    count = _("1 row") if len(keys) == 1 else _("{count} rows", count=len(keys))
    if column:
        count = _("{rows}, conversations in {column}", rows=count, column=column)
    report["facts"].append(_("{name}: {rows}; columns: {types}", name=name, rows=count, types=types))
    expected = request["rows"].get(name, len(keys))
    if len(keys) != expected:
        report["problems"].append(
            _("{name}: {count} rows, not {expected}", name=name, count=len(keys), expected=expected)
        )
    if not keys:
        report["problems"].append(_("{name}: it has no row", name=name))
    elif not column:
        text = _("{name}: none of its columns holds conversations; name one with --column", name=name)
        report["problems"].append(text)
    for problem, numbers in numbers_by_problem.items():
        named = ", ".join(map(str, numbers[:MAX_NAMED_ROWS])) + (" …" if len(numbers) > MAX_NAMED_ROWS else "")
        values = {"name": name, "count": len(numbers), "problem": problem, "rows": named}
        report["problems"].append(_("{name}: {count} rows: {problem} (rows {rows})", **values))
    if twice := len(keys) - len(set(keys)):
        report["notes"].append(_("{name}: {count} rows are there twice", name=name, count=twice))
    return keys


def _check_overlap(keys: dict[str, list[str]]) -> Iterator[Message]:
    for left, right in itertools.combinations(keys, 2):
        places = {key: number for number, key in enumerate(keys[left])}
        both = [f"{places[key]} = {number}" for number, key in enumerate(keys[right]) if key in places]
        if both:
            shown = ", ".join(both[:MAX_NAMED_ROWS])
            values = {"count": len(both), "left": left, "right": right, "rows": shown}
            yield _("{count} rows are in {left} and in {right} ({rows}): val/loss would be too good", **values)


def _write_first_rows(path: str, to: str, rows: int) -> Message | None:
    part = f"{to}.part"
    if path.endswith(".jsonl"):
        with open(path, encoding="utf-8") as file:
            lines = list(itertools.islice((line for line in file if line.strip()), rows))
        with open(part, "w", encoding="utf-8") as file:
            file.writelines(line.rstrip("\n") + "\n" for line in lines)
        written = len(lines)
    else:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        file = _open_parquet(path)
        table = arrow.Table.from_batches(file.iter_batches(batch_size=rows), schema=file.schema_arrow).slice(0, rows)
        parquet.write_table(table, part)
        written = table.num_rows
    if written < rows:
        os.unlink(part)
        return _("it has {count} rows, not {expected}", count=written, expected=rows)
    os.replace(part, to)
    return None


def _main() -> None:
    request = json.loads(sys.argv[1])
    report: Report = {"facts": [], "problems": [], "notes": []}
    missing_module = ""
    try:
        if "tiny" not in request:
            keys = {name: _check_file(name, request, report) for name in request["files"]}
            report["problems"] += _check_overlap(keys)
        elif problem := _write_first_rows(request["tiny"], request["to"], request["rows"]):
            report["problems"].append(problem)
    except ModuleNotFoundError as error:
        missing_module = f"{type(error).__name__}: {error}"
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
        report["problems"].append(_("{error}", error=text))
    sys.stdout.write(json.dumps({"step": "report", "missing_module": missing_module, **report}) + "\n")


if __name__ == "__main__":
    _main()
