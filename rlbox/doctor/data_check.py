"""Check training data: rows, columns, conversations, rows in both files; the stack's interpreter reads them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.app import App
from rlbox.doctor.stack import StackPythonAndRequirements, open_scratch_dir_stack_probe, require_named_or_local_stack
from rlbox.errors import MachineError, SpecError, TimedOut, WorkFailed
from rlbox.i18n import _, translate
from rlbox.system.files import require_replaceable_or_creatable_file

ExitCode = int


def check_training_data(
    app: App, files: Mapping[str, Path], column: str, expected_rows: Mapping[str, int], python: str, timeout_s: float
) -> ExitCode:
    """Check files by name (`train`, `val`), with conversations in a column (empty: it is found); print the report."""
    for path in files.values():
        _require_file(path)
    paths = {name: str(path.absolute()) for name, path in files.items()}
    request = {"files": paths, "rows": expected_rows, "column": column}
    report = _run_reader(_find_stack(python), request, timeout_s)
    lines = [
        *report["facts"],
        *(_("note: {note}").format(note=text) for text in report["notes"]),
        *(_("wrong: {text}").format(text=text) for text in report["problems"]),
    ]
    app.output({"files": paths, **report}, "\n".join(map(translate, lines)))
    count = len(report["problems"])
    app.print_status(_("data: {count} wrong").format(count=count) if count else _("data: nothing wrong"))
    return WorkFailed.exit_code if count else 0


def write_first_rows(
    app: App, source: Path, output_file_else_data_output_dir: Path | None, rows: int, python: str, timeout_s: float
) -> ExitCode:
    _require_file(source)
    path = (output_file_else_data_output_dir or _default_tiny_file(source)).absolute()
    facts = {"from": str(source.absolute()), "to": str(path), "rows": rows}
    with app.collecting_refusals_if_dry_run("file"):
        require_replaceable_or_creatable_file(path, "--output")
    if app.dry_run:
        would = _("write {rows} rows of {source} to {path}").format(rows=rows, source=source, path=path)
        return app.print_dry_run(facts, "", would)
    request = {"tiny": facts["from"], "to": facts["to"], "rows": rows}
    for problem in _run_reader(_find_stack(python), request, timeout_s)["problems"]:
        raise WorkFailed(
            _("no tiny set was made: {error}").format(error=problem),
            where=str(source),
            next_step=_("name a larger file"),
        )
    app.output(facts, str(path))
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
        what = _("this is not a regular file") if path.exists() else _("there is no such file")
        raise SpecError(what, where=str(path), next_step=_("pass the data file that the job reads"))


def _find_stack(python: str) -> StackPythonAndRequirements:
    return require_named_or_local_stack(
        python, "rlbox shell TARGET -- rlbox data …, or name an interpreter with pyarrow: --python FILE"
    )


def _run_reader(
    stack: StackPythonAndRequirements, request: Mapping[str, object], timeout_s: float
) -> dict[str, list[str]]:
    with open_scratch_dir_stack_probe(stack, dict(os.environ)) as probe:
        facts = probe.run("probe_data.py", json.dumps(request), monotonic_deadline=time.monotonic() + timeout_s)
    if facts.exit_code is None:
        raise TimedOut(_("the data were not read in time"), where=stack.python, next_step=_("give more with --timeout"))
    report: Mapping[str, Any] = facts.steps[-1] if facts.steps else {"missing_module": facts.last_error}
    if report["missing_module"] or not facts.steps:
        raise MachineError(
            _("the interpreter cannot read the data: {error}").format(error=report["missing_module"]),
            where=stack.python,
            next_step=_("name one with pyarrow: --python FILE"),
        )
    return {key: [_restore_message(one) for one in report[key]] for key in ("facts", "problems", "notes")}


def _restore_message(message: Any) -> Any:
    """Return a message of the reader, which is a list of a text and its values; a value itself stays."""
    if not isinstance(message, list):
        return message
    text, values = message
    return _(text).format(**{name: _restore_message(value) for name, value in values})
