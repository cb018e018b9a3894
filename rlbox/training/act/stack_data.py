"""Let the stack's interpreter look at training data: it has the readers and the tokenizer that the training has."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlbox.doctor.act.probe.stack import StackProbe
from rlbox.doctor.act.stack_place import Stack, bytecode_folder
from rlbox.errors import NodeError, TimedOut


def ask_of_data(
    stack: Stack, environ: Mapping[str, str], asked: Mapping[str, object], timeout_s: float
) -> Sequence[Mapping[str, Any]]:
    """Return the steps of `probe_data.py`.

    Raises
    ------
    NodeError
        The interpreter lacks what reads the file, or does not work.
    TimedOut
        It did not come to an end.
    """
    folder = tempfile.mkdtemp(prefix="rlbox-data-")
    bytecode = bytecode_folder(environ, stack.demands.mount, stack.lock) if stack.lock else None
    probe = StackProbe(environ, stack.python, folder, f"{os.getpid()}-{time.monotonic_ns()}", bytecode)
    try:
        facts = probe.data(asked, time.monotonic() + timeout_s)
    finally:
        probe.end()
        shutil.rmtree(folder, ignore_errors=True)
    error = next((str(row["error"]) for row in facts.steps if not row.get("ok")), "")
    if facts.exit_code is None:
        raise TimedOut("the data were not read in time", where=stack.python, next_step="give more with --timeout")
    if "ModuleNotFoundError" in error or not facts.steps:
        raise NodeError(
            f"the interpreter cannot read the data: {error or facts.last_error}", where=stack.python,
            next_step="name one with pyarrow and transformers: --python FILE",
        )  # fmt: skip
    return [row for row in facts.steps if row["step"] != "end"]
