"""Check training data: rows, columns, conversations, lengths, rows in both files, the mapping of the split.

The stack's interpreter reads it, for it has the readers and the tokenizer of the training.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.doctor.stack import StackLocation, find_stack
from rlbox.errors import NodeError, SpecError, TimedOut, WorkFailed
from rlbox.evaluation.components import open_stack_probe
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.files import require_writable_file


@dataclass(frozen=True, kw_only=True)
class DataCheckOptions:
    """What the data must be; `rows` maps `train` and `val` to how many rows there must be."""

    rows: Mapping[str, int] = field(default_factory=dict)
    longest: int = 0


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What the data are, in lines, and what is wrong with them."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def analyze_data(steps: Sequence[Mapping[str, Any]], options: DataCheckOptions, split: str | None) -> DataReport:
    """Return the report.

    Parameters
    ----------
    steps
        What `probe_data.py` said.
    split
        Text of the split's mapping; None: there is none.
    """
    files = {str(row["name"]): row for row in steps if row["step"] == "file"}
    problems = [*_files(files, options), *(str(row["error"]) for row in steps if row["step"] == "error")]
    notes = []
    for row in steps:
        match row["step"]:
            case "overlap" if row["count"]:
                pairs = ", ".join(f"{left} = {right}" for left, right in row["rows"])
                both = f"{row['count']} rows are in {row['left']} and in {row['right']}"
                problems.append(f"{both} ({pairs}): val/loss would be too good")
            case "tokens" if row["over"]:
                notes.append(
                    f"{row['name']}: {row['over']} rows are longer than {options.longest} tokens and will be cut"
                )
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


def _files(files: Mapping[str, Mapping[str, Any]], wish: DataCheckOptions) -> Iterator[str]:
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


_NEXT = "rlbox shell TARGET -- rlbox data …, or name an interpreter with pyarrow: --python FILE"


def check_data(
    app: App,
    files: Mapping[str, Path],
    split: Path | None,
    reader_settings: Mapping[str, str],
    options: DataCheckOptions,
    python: str,
    timeout_s: float,
) -> int:
    """Check the files, print what they are and what is wrong, and return rlbox's exit code."""
    _there(*files.values(), *([split] if split else []))
    paths = {name: str(path.absolute()) for name, path in files.items()}
    said = run_data_reader(
        find_stack(python, _NEXT),
        dict(os.environ),
        {"files": paths, **reader_settings, "longest": options.longest},
        timeout_s,
    )
    report = analyze_data(said, options, split.read_text(encoding="utf-8", errors="replace") if split else None)
    lines = [*report.facts, *(f"note: {text}" for text in report.notes)]
    lines += [f"wrong: {text}" for text in report.problems]
    app.result({"files": paths, **asdict(report)}, "\n".join(lines))
    app.say(f"data: {len(report.problems) or 'nothing'} wrong")
    return WorkFailed.exit_code if report.problems else 0


def write_tiny_dataset(app: App, file: Path, to: Path | None, rows: int, python: str, timeout_s: float) -> int:
    """Write the first rows of a file to a file of their own, and return rlbox's exit code."""
    _there(file)
    made = (to or _tiny_file(file)).absolute()
    facts = {"from": str(file.absolute()), "to": str(made), "rows": rows}
    with app.checking("file"):
        require_writable_file(made, "another with --output")
    if app.dry_run:
        return app.planned(facts, "", f"write {rows} rows of {file} to {made}")
    asked = {"tiny": facts["from"], "to": facts["to"], "rows": rows}
    (step,) = run_data_reader(find_stack(python, _NEXT), dict(os.environ), asked, timeout_s)
    if not step["ok"]:
        raise WorkFailed(
            _("no tiny set was made: {error}").format(error=step["error"]),
            where=str(file),
            next_step=_("name a larger file"),
        )
    app.result(facts, str(made))
    return 0


def _tiny_file(file: Path) -> Path:
    folder = os.environ.get("DATA_OUTPUT_DIR", "")
    if not folder:
        raise SpecError(
            _("it is not said where the tiny set goes"), where="DATA_OUTPUT_DIR",
            next_step=_("set DATA_OUTPUT_DIR to the folder of the data, or give --output FILE"),
        )  # fmt: skip
    return Path(folder, f"{file.stem}_tiny{file.suffix}")


def _there(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise SpecError(
                _("there is no such file"), where=str(path), next_step=_("give the file that the job reads")
            )


def run_data_reader(
    stack: StackLocation, environ: Mapping[str, str], request: Mapping[str, object], timeout_s: float
) -> Sequence[Mapping[str, Any]]:
    """Return the steps of `probe_data.py`.

    Raises
    ------
    NodeError
        The interpreter lacks what reads the file, or does not work.
    TimedOut
        It did not come to an end.
    """
    with open_stack_probe(stack, environ) as probe:
        facts = probe.probe_data(request, time.monotonic() + timeout_s)
    error = next((str(row["error"]) for row in facts.steps if not row.get("ok")), "")
    if facts.exit_code is None:
        raise TimedOut(_("the data were not read in time"), where=stack.python, next_step=_("give more with --timeout"))
    if "ModuleNotFoundError" in error or not facts.steps:
        raise NodeError(
            _("the interpreter cannot read the data: {error}").format(error=error or facts.last_error),
            where=stack.python,
            next_step=_("name one with pyarrow and transformers: --python FILE"),
        )  # fmt: skip
    return [row for row in facts.steps if row["step"] != "end"]
