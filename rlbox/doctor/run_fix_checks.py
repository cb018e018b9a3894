"""Run the checks of the fixes that this image has; the supervisor does so before a run, `rlbox doctor` at any time."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.doctor.fix_checks import FixCheck, checks_of, judge_checks
from rlbox.doctor.probe.programs import Program
from rlbox.findings import Finding
from rlbox.foreign import whole_number
from rlbox.system.json_files import read_table
from rlbox.system.limits import usable_cores
from rlbox.values import OWN

PLACE = "RLBOX_PLACE"
"""Variable with the folder of what rlbox laid for itself on an applied machine; an image has it at its own path."""
ENGINE_PERCENT = "RLBOX_ENGINE_PERCENT"
"""Variable for the checks before a run: percent of a GPU that its inference engines take, 0 without one."""
_CHECK_S = 3
_LEAST_S = 0.5
_SHELLS = 4
# Few shells for all: what the hooks of the image set is set once in each, as in a program that the entrypoint starts.
_SCRIPT = f"""
[ ! -r "$0" ] || . "$0" >/dev/null 2>&1
limit=; ! command -v timeout >/dev/null 2>&1 || limit="timeout {_CHECK_S}"
for text; do
    said=$($limit sh -c "$text" 2>&1)
    printf '%s\\0%s\\0' $? "$said"
done
"""


def probe_fixes(
    phase: str,
    manifest: Mapping[str, Any] | None = None,
    timeout_s: float = 8.0,
    own: str = "",
    environ: Mapping[str, str] = os.environ,
) -> tuple[Finding, ...]:
    """Return a finding for each fix of this image, or applied machine, whose check fails.

    Parameters
    ----------
    phase
        `run` before a run, `doctor` at other times: a check says in which it makes sense.
    manifest
        The image's manifest; read when it is not given.
    own
        Folder of what rlbox laid for itself; empty: `PLACE` says, or it is that of an image.
    environ
        What the checks are started with, before the hooks.
    """
    end = time.monotonic() + timeout_s
    own = own or environ.get(PLACE, OWN)
    checks = checks_of(read_table(Path(own, "share/fixes.json"), links=True) if manifest is None else manifest, phase)
    failed = {row.id for row in _judged(checks, end, own, environ)}
    # Once more: what fails for a moment, as a process ends or a file is written, is no fault.
    again = tuple(check for check in checks if check.id in failed)
    return _judged(again, end, own, environ)


def _judged(checks: Sequence[FixCheck], end: float, own: str, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """Run checks until `end` (monotonic), a part of them in each of a few shells at once; the findings are in order."""
    shells = min(_SHELLS, math.ceil(usable_cores()), len(checks))
    started = []
    for number in range(shells):
        part = checks[number::shells]
        argv = ["sh", "-c", _SCRIPT, f"{own}/libexec/init.sh", *(check.run for check in part)]
        with contextlib.suppress(OSError):  # no process can be started: a limit, which has a finding of its own
            started.append((part, Program(argv, environ, "", token=f"fixes-{os.getpid()}-{number}")))
    end = max(end, time.monotonic() + _LEAST_S)
    found = [row for part, program in started for row in judge_checks(part, _outcomes(program.wait(b"", end).output))]
    order = [check.id for check in checks]
    return tuple(sorted(found, key=lambda row: order.index(row.id)))


def _outcomes(said: str) -> list[tuple[int, str]]:
    parts = said.split("\0")
    told = ((whole_number(code), text) for code, text in zip(parts[0::2], parts[1::2], strict=False))
    return [(code, text) for code, text in told if code is not None]
