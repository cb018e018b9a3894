"""Run by the stack's own interpreter: look at training data, or write its first rows. Argument: what to do, as JSON.

{"tiny": FILE, "to": FILE, "rows": N}, or {"files": {"train": FILE, "val": FILE}, "column": NAME, "tokenizer": FOLDER,
"longest": N}. One JSON object a line comes out. Parquet needs pyarrow, token lengths need transformers, both imported
only then.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

_CHAT = ("messages", "prompt", "conversations")
_FIRST = 5  # rows that are named of each kind of problem


def _emit(step: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def _open_parquet(path: str) -> Any:
    """Return a Parquet file; what is wrong with it is said by pyarrow's own error."""
    return importlib.import_module("pyarrow.parquet").ParquetFile(path)


def _read_rows(path: str) -> tuple[dict[str, str], Iterator[dict[str, Any]]]:
    """Return columns with their types, and the rows."""
    if path.endswith(".jsonl"):
        with open(path, encoding="utf-8") as file:
            lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
        rows = [_parse_row(path, number, line) for number, line in lines]
        columns = {name: type(value).__name__ for name, value in rows[0].items()} if rows else {}
        return columns, iter(rows)
    file = _open_parquet(path)
    columns = {field.name: str(field.type) for field in file.schema_arrow}
    return columns, (row for batch in file.iter_batches(batch_size=256) for row in batch.to_pylist())


def _parse_row(path: str, number: int, line: str) -> dict[str, Any]:
    """Return a line's object; an error names the line."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"{path}:{number}: a line is no JSON object")
    return row


def _chat_problem(chat: Any, trains: bool) -> str:
    """Return what is wrong with a conversation: one to train on ends with an answer, a prompt with a question."""
    if not isinstance(chat, list) or not chat:
        return "no conversation: a list of role and content is needed"
    if not all(isinstance(turn, dict) and "role" in turn and turn.get("content") is not None for turn in chat):
        return "a turn lacks role or content"
    roles = [str(turn["role"]) for turn in chat]
    if set(roles) - {"system", "user", "assistant", "tool"}:
        return f"unknown roles: {', '.join(roles)}"
    if "user" not in roles:
        return "nobody asks: there is no turn of the user"
    if trains and roles[-1] != "assistant":
        return "it does not end with the assistant's answer"
    if not trains and roles[-1] == "assistant":
        return "the prompt ends with the assistant's answer already"
    if any(not str(turn["content"]).strip() and not turn.get("tool_calls") for turn in chat):
        return "a turn is empty"
    return ""


def _check_file(name: str, path: str, column: str) -> tuple[list[str], list[Any]]:
    """Say what a file holds; return a key of each row, and the conversations that are sound."""
    columns, rows = _read_rows(path)
    chat = column or next((one for one in _CHAT if one in columns), "")
    trains = chat != "prompt"
    keys: list[str] = []
    sound: list[Any] = []
    problems: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if chat in row:
            value = row[chat]
            wrong = _chat_problem(value, trains)
            if not trains and not wrong and not (row.get("reward_model") or {}).get("ground_truth"):
                wrong = "reward_model.ground_truth is missing, which the reward compares with"
        else:
            value, wrong = row, f"it has no column {chat}" if chat else ""
        keys.append(hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest())
        if wrong:
            problems.setdefault(wrong, []).append(number)
        elif chat:
            sound.append(value)
    rows_of = [{"problem": text, "count": len(found), "rows": found[:_FIRST]} for text, found in problems.items()]
    twice = len(keys) - len(set(keys))
    _emit("file", ok=True, name=name, rows=len(keys), columns=columns, chat=chat, problems=rows_of, twice=twice)
    return keys, sound


def _print_token_counts(name: str, chats: list[Any], tokenizer: str, longest: int) -> None:
    """Say how long the conversations are in the model's own tokens."""
    model = importlib.import_module("transformers").AutoTokenizer.from_pretrained(tokenizer)
    texts = [model.apply_chat_template(chat, tokenize=False) for chat in chats]
    counts = [len(ids) for ids in model(texts, add_special_tokens=False)["input_ids"]] if texts else []
    over = [number for number, count in enumerate(counts) if count > longest]
    middle = sorted(counts)[len(counts) // 2] if counts else 0
    _emit("tokens", ok=True, name=name, middle=middle, most=max(counts, default=0), over=len(over), rows=over[:_FIRST])


def _check_files(request: dict[str, Any]) -> None:
    """Look at the files, at rows that are in more than one, and at lengths."""
    keys: dict[str, list[str]] = {}
    sound: dict[str, list[Any]] = {}
    for name, path in request["files"].items():
        keys[name], sound[name] = _check_file(name, path, request["column"])
    for left, right in itertools.combinations(keys, 2):
        places = {key: number for number, key in enumerate(keys[left])}
        both = [[places[key], number] for number, key in enumerate(keys[right]) if key in places]
        _emit("overlap", ok=True, left=left, right=right, count=len(both), rows=both[:_FIRST])
    for name, chats in sound.items() if request["tokenizer"] else ():
        _print_token_counts(name, chats, request["tokenizer"], request["longest"])


def _write_first_rows(path: str, to: str, rows: int) -> None:
    """Write the first rows with the same columns, by rename."""
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
        _emit("tiny", ok=False, error=f"it has {written} rows, not {rows}")
        return
    os.replace(part, to)
    _emit("tiny", ok=True, rows=written)


def _main() -> None:
    """Do what was asked; an error is said in the form of a step."""
    asked = json.loads(sys.argv[1])
    try:
        if "tiny" in asked:
            _write_first_rows(asked["tiny"], asked["to"], asked["rows"])
        else:
            _check_files(asked)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        _emit("error", ok=False, error=f"{type(error).__name__}: {lines[0] if lines else ''}"[:500])
    _emit("end", ok=True)


if __name__ == "__main__":
    _main()
