"""What `rlbox data` does: the stack's interpreter looks, for it has the readers and the tokenizer of the training."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlbox.app import App
from rlbox.doctor.stack_location import StackLocation, find_stack
from rlbox.errors import NodeError, SpecError, TimedOut, WorkFailed
from rlbox.evaluation.data_check import DataWish, judge_data
from rlbox.evaluation.run_components import stack_probe
from rlbox.i18n import _
from rlbox.system.files import require_writable_file

_NEXT = "rlbox shell TARGET -- rlbox data …, or name an interpreter with pyarrow: --python FILE"


def check_data(
    app: App,
    files: Mapping[str, Path],
    split: Path | None,
    asked: Mapping[str, str],
    wish: DataWish,
    python: str,
    timeout_s: float,
) -> int:
    """Check the files, print what they are and what is wrong, and return rlbox's exit code."""
    _there(*files.values(), *([split] if split else []))
    paths = {name: str(path.absolute()) for name, path in files.items()}
    said = ask_of_data(
        find_stack(python, _NEXT),
        dict(os.environ),
        {"files": paths, **asked, "longest": wish.longest},
        timeout_s,
    )
    report = judge_data(said, wish, split.read_text(encoding="utf-8", errors="replace") if split else None)
    lines = [*report.facts, *(f"note: {text}" for text in report.notes)]
    lines += [f"wrong: {text}" for text in report.problems]
    app.result({"files": paths, **asdict(report)}, "\n".join(lines))
    app.say(f"data: {len(report.problems) or 'nothing'} wrong")
    return WorkFailed.exit_code if report.problems else 0


def make_tiny(app: App, file: Path, to: Path | None, rows: int, python: str, timeout_s: float) -> int:
    """Write the first rows of a file to a file of their own, and return rlbox's exit code."""
    _there(file)
    made = (to or _tiny_file(file)).absolute()
    facts = {"from": str(file.absolute()), "to": str(made), "rows": rows}
    with app.checking("file"):
        require_writable_file(made, "another with --to")
    if app.dry_run:
        return app.planned(facts, "", f"write {rows} rows of {file} to {made}")
    asked = {"tiny": facts["from"], "to": facts["to"], "rows": rows}
    (step,) = ask_of_data(find_stack(python, _NEXT), dict(os.environ), asked, timeout_s)
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
            next_step=_("set DATA_OUTPUT_DIR to the folder of the data, or give --to FILE"),
        )  # fmt: skip
    return Path(folder, f"{file.stem}_tiny{file.suffix}")


def _there(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise SpecError(
                _("there is no such file"), where=str(path), next_step=_("give the file that the job reads")
            )


def ask_of_data(
    stack: StackLocation, environ: Mapping[str, str], asked: Mapping[str, object], timeout_s: float
) -> Sequence[Mapping[str, Any]]:
    """Return the steps of `probe_data.py`.

    Raises
    ------
    NodeError
        The interpreter lacks what reads the file, or does not work.
    TimedOut
        It did not come to an end.
    """
    with stack_probe(stack, environ) as probe:
        facts = probe.data(asked, time.monotonic() + timeout_s)
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
