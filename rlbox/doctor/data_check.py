"""Check training data: rows, columns, conversations, lengths, rows in both files, the mapping of the split.

The stack's interpreter reads the files, for it has the readers and the tokenizer of the training.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.doctor.stack import StackLocation, find_named_or_local_stack, open_scratch_dir_stack_probe
from rlbox.errors import NodeError, SpecError, TimedOut, WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.files import require_writable_file

ExitCode = int
FileRows = Mapping[str, int]
"""File (`train`, `val`) to a number of rows."""


@dataclass(frozen=True, kw_only=True)
class _DataReport:
    """Lines about the files, what is wrong with them, and what is worth knowing."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check_training_data(
    app: App,
    files: Mapping[str, Path],
    train_val_split_json: Path | None,
    reader_options: Mapping[str, str | int],
    expected_rows: FileRows,
    python: str,
    timeout_s: float,
) -> ExitCode:
    """Check files, print the report, and return rlbox's exit code.

    Parameters
    ----------
    files
        `train`, and `val` where there is one.
    train_val_split_json
        JSON that says which row went where.
    reader_options
        Of `probe_data.py`: `column`, `tokenizer`, `longest` (tokens).
    """
    for path in [*files.values(), *([train_val_split_json] if train_val_split_json else [])]:
        _require_file(path)
    paths = {name: str(path.absolute()) for name, path in files.items()}
    steps = _run_reader(_find_stack(python), {"files": paths, **reader_options}, timeout_s)
    mapping = train_val_split_json.read_text(encoding="utf-8", errors="replace") if train_val_split_json else None
    report = _build_data_report(steps, expected_rows, int(reader_options["longest"]), mapping)
    lines = [
        *report.facts,
        *(f"note: {text}" for text in report.notes),
        *(f"wrong: {text}" for text in report.problems),
    ]
    app.result({"files": paths, **asdict(report)}, "\n".join(lines))
    app.print_status(f"data: {len(report.problems) or 'nothing'} wrong")
    return WorkFailed.exit_code if report.problems else 0


def _build_data_report(
    steps: Sequence[Mapping[str, Any]], expected_rows: FileRows, max_tokens: int, mapping: str | None
) -> _DataReport:
    """Return what the steps of `probe_data.py` mean; `mapping` is the text of the split's JSON, if there is one."""
    files = {str(step["name"]): step for step in steps if step["step"] == "file"}
    facts, notes = [], []
    problems = [*_check_files(files, expected_rows)]
    problems += [str(step["error"]) for step in steps if step["step"] == "error"]
    for step in steps:
        match step["step"]:
            case "file":
                columns = ", ".join(f"{name} ({kind})" for name, kind in step["columns"].items())
                chat = f", conversations in {step['chat']}" if step["chat"] else ""
                facts.append(f"{step['name']}: {counted(step['rows'], 'row', 'rows')}{chat}; columns: {columns}")
            case "overlap" if step["count"]:
                pairs = ", ".join(f"{left} = {right}" for left, right in step["rows"])
                both = f"{step['count']} rows are in {step['left']} and in {step['right']}"
                problems.append(f"{both} ({pairs}): val/loss would be too good")
            case "tokens":
                facts.append(f"{step['name']}: {step['middle']} tokens in the middle, {step['most']} at most")
                if step["over"]:
                    over = f"{step['over']} rows are longer than {max_tokens} tokens"
                    notes.append(f"{step['name']}: {over} and will be cut")
    notes += [f"{name}: {step['twice']} rows are there twice" for name, step in files.items() if step["twice"]]
    if mapping is not None:
        problems += _check_split(mapping, {name: int(step["rows"]) for name, step in files.items()})
    return _DataReport(facts=tuple(facts), problems=tuple(problems), notes=tuple(notes))


def _check_files(files: Mapping[str, Mapping[str, Any]], expected_rows: FileRows) -> Iterator[str]:
    for name, step in files.items():
        if (expected := expected_rows.get(name)) and expected != step["rows"]:
            yield f"{name}: {step['rows']} rows, not {expected}"
        if not step["rows"]:
            yield f"{name}: it has no row"
        elif not step["chat"]:
            yield f"{name}: none of its columns holds conversations; name one with --column"
        for problem in step["problems"]:
            rows = ", ".join(map(str, problem["rows"])) + (" …" if problem["count"] > len(problem["rows"]) else "")
            yield f"{name}: {problem['count']} rows: {problem['problem']} (rows {rows})"


def _check_split(text: str, files: FileRows) -> Iterator[str]:
    """Yield where the mapping and the files differ; it has lists of rows by part, or the part of each row."""
    try:
        mapping = parse_json(text)
    except ValueError as error:
        yield f"the split's mapping is no JSON: {error}"
        return
    values = mapping if isinstance(mapping, dict) else {}
    lists = {part: {json.dumps(row) for row in rows} for part, rows in values.items() if isinstance(rows, list)}
    parts = [part for part in values.values() if isinstance(part, str)]
    counts = {part: len(values[part]) for part in lists} or {part: parts.count(part) for part in set(parts)}
    if not counts:
        yield "the split's mapping has neither lists by part nor the part of each row"
    for name, rows in files.items():
        if counts.get(name, rows) != rows:
            yield f"the split's mapping names {counts[name]} rows for {name}, which has {rows}"
    if shared := sorted(lists.get("train", set()) & lists.get("val", set())):
        yield f"the split's mapping has {len(shared)} rows in train and in val: {', '.join(shared[:5])}"


def write_first_rows(
    app: App, source: Path, target_else_data_output_dir: Path | None, rows: int, python: str, timeout_s: float
) -> ExitCode:
    """Write the first rows of a file to a file of their own, and return rlbox's exit code."""
    _require_file(source)
    path = (target_else_data_output_dir or _default_tiny_file(source)).absolute()
    facts = {"from": str(source.absolute()), "to": str(path), "rows": rows}
    with app.collecting_refusals_if_dry_run("file"):
        require_writable_file(path, "another with --output")
    if app.dry_run:
        return app.planned(facts, "", f"write {rows} rows of {source} to {path}")
    request = {"tiny": facts["from"], "to": facts["to"], "rows": rows}
    (step,) = _run_reader(_find_stack(python), request, timeout_s)
    if not step["ok"]:
        raise WorkFailed(
            _("no tiny set was made: {error}").format(error=step["error"]),
            where=str(source),
            next_step=_("name a larger file"),
        )
    app.result(facts, str(path))
    return 0


def _default_tiny_file(source: Path) -> Path:
    directory = os.environ.get("DATA_OUTPUT_DIR", "")
    if not directory:
        raise SpecError(
            _("it is not said where the tiny set goes"), where="DATA_OUTPUT_DIR",
            next_step=_("set DATA_OUTPUT_DIR to the folder of the data, or give --output FILE"),
        )  # fmt: skip
    return Path(directory, f"{source.stem}_tiny{source.suffix}")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise SpecError(_("there is no such file"), where=str(path), next_step=_("give the file that the job reads"))


def _find_stack(python: str) -> StackLocation:
    return find_named_or_local_stack(
        python, "rlbox shell TARGET -- rlbox data …, or name an interpreter with pyarrow: --python FILE"
    )


def _run_reader(stack: StackLocation, request: Mapping[str, object], timeout_s: float) -> list[Mapping[str, Any]]:
    """Return the steps of `probe_data.py`."""
    with open_scratch_dir_stack_probe(stack, dict(os.environ)) as probe:
        facts = probe.run("probe_data.py", json.dumps(request), monotonic_deadline=time.monotonic() + timeout_s)
    error = next((str(step["error"]) for step in facts.steps if not step.get("ok")), "")
    if facts.exit_code is None:
        raise TimedOut(_("the data were not read in time"), where=stack.python, next_step=_("give more with --timeout"))
    if "ModuleNotFoundError" in error or not facts.steps:
        raise NodeError(
            _("the interpreter cannot read the data: {error}").format(error=error or facts.last_error),
            where=stack.python,
            next_step=_("name one with pyarrow and transformers: --python FILE"),
        )  # fmt: skip
    return [step for step in facts.steps if step["step"] != "end"]
