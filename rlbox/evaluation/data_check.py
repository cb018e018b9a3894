"""Judge training data: rows, columns, conversations, lengths, rows in both files, and the mapping of the split."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlbox.amounts import counted
from rlbox.foreign import parse_json


@dataclass(frozen=True, kw_only=True)
class DataWish:
    """What the data must be; `rows` maps `train` and `val` to how many rows there must be."""

    rows: Mapping[str, int] = field(default_factory=dict)
    longest: int = 0


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What the data are, in lines, and what is wrong with them."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def judge_data(steps: Sequence[Mapping[str, Any]], wish: DataWish, split: str | None) -> DataReport:
    """Return the report.

    Parameters
    ----------
    steps
        What `probe_data.py` said.
    split
        Text of the split's mapping; None: there is none.
    """
    files = {str(row["name"]): row for row in steps if row["step"] == "file"}
    problems = [*_files(files, wish), *(str(row["error"]) for row in steps if row["step"] == "error")]
    notes = []
    for row in steps:
        match row["step"]:
            case "overlap" if row["count"]:
                pairs = ", ".join(f"{left} = {right}" for left, right in row["rows"])
                both = f"{row['count']} rows are in {row['left']} and in {row['right']}"
                problems.append(f"{both} ({pairs}): val/loss would be too good")
            case "tokens" if row["over"]:
                notes.append(f"{row['name']}: {row['over']} rows are longer than {wish.longest} tokens and will be cut")
    notes += [f"{name}: {row['twice']} rows are there twice" for name, row in files.items() if row["twice"]]
    if split is not None:
        problems += _split(split, files)
    return DataReport(facts=tuple(_facts(steps)), problems=tuple(problems), notes=tuple(notes))


def _facts(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in steps:
        match row["step"]:
            case "file":
                columns = ", ".join(f"{name} ({kind})" for name, kind in row["columns"].items())
                chat = f", conversations in {row['chat']}" if row["chat"] else ""
                yield f"{row['name']}: {counted(row['rows'], 'row', 'rows')}{chat}; columns: {columns}"
            case "tokens":
                yield f"{row['name']}: {row['middle']} tokens in the middle, {row['most']} at most"


def _files(files: Mapping[str, Mapping[str, Any]], wish: DataWish) -> Iterator[str]:
    for name, row in files.items():
        if (wanted := wish.rows.get(name)) and wanted != row["rows"]:
            yield f"{name}: {row['rows']} rows, not {wanted}"
        if not row["rows"]:
            yield f"{name}: it has no row"
        elif not row["chat"]:
            yield f"{name}: none of its columns holds conversations; name one with --column"
        for found in row["problems"]:
            rows = ", ".join(map(str, found["rows"])) + (" …" if found["count"] > len(found["rows"]) else "")
            yield f"{name}: {found['count']} rows: {found['problem']} (rows {rows})"


def _split(text: str, files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield where the mapping and the files differ, in either form: lists by part, or the part by row."""
    try:
        told = parse_json(text)
    except ValueError as error:
        yield f"the split's mapping is no JSON: {error}"
        return
    counts = _counts(told)
    if counts is None:
        yield "the split's mapping has neither lists by part nor the part of each row"
        return
    for name, row in files.items():
        if name in counts and counts[name] != row["rows"]:
            yield f"the split's mapping names {counts[name]} rows for {name}, which has {row['rows']}"
    if shared := _shared(told):
        yield f"the split's mapping has {len(shared)} rows in train and in val: {', '.join(shared[:5])}"


def _counts(told: Any) -> dict[str, int] | None:
    if not isinstance(told, dict):
        return None
    lists = {name: len(rows) for name, rows in told.items() if isinstance(rows, list)}
    if lists:
        return lists
    parts = [part for part in told.values() if isinstance(part, str)]
    return {part: parts.count(part) for part in set(parts)} or None


def _shared(told: Mapping[str, Any]) -> list[str]:
    parts = [told.get(name) for name in ("train", "val")]
    if not all(isinstance(rows, list) for rows in parts):
        return []
    train, val = ({json.dumps(row) for row in rows or ()} for rows in parts)
    return sorted(train & val)
