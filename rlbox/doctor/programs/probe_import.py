"""Run by the stack's own interpreter: import what a part is used by, then run a first kernel of its own.

Arguments: the kernel's lines of Python, or nothing; then MODULE or MODULE:ATTRIBUTE. One process a part: one that ends
its process, or hangs, leaves the others alone. Without a GPU no kernel is run.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

BEGAN = time.monotonic()


def _import(name: str) -> None:
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    if attribute:
        getattr(found, attribute)


def _run_kernel(lines: str) -> None:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return
    if torch.cuda.is_available():
        names: dict[str, Any] = {"torch": torch}
        exec(lines, names)  # noqa: S102 (of the shipped table)
        got = names["got"].float()
        # of a launch that failed the next of torch's own kernels tells
        if not torch.allclose(got, torch.full_like(got, names["want"]), atol=0.01):
            raise RuntimeError("its kernel did not run: it wrote other numbers than it must")


def _run_step(step: str, name: str, last: bool, act: Callable[[], None]) -> bool:
    """Do it, and print how it went, with the line of the stack that failed."""
    facts: dict[str, object] = {"step": step, "name": name, "last": last}
    try:
        act()
    except BaseException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        facts |= {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]}
        facts |= {"all": str(error)[:4000], "where": f"{frame.filename}:{frame.lineno}"}
    ok = "error" not in facts
    sys.stdout.write("\n")  # a library may have left a line open
    sys.stdout.write(json.dumps({**facts, "ok": ok, "seconds": time.monotonic() - BEGAN}) + "\n")
    sys.stdout.flush()
    return ok


def _main() -> None:
    kernel, *names = sys.argv[1:]
    for number, name in enumerate(names):
        if not _run_step("import", name, not kernel and number == len(names) - 1, partial(_import, name)):
            return
    if kernel:
        _run_step("kernel", names[0], True, partial(_run_kernel, kernel))


if __name__ == "__main__":
    _main()
