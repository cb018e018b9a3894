"""Checks of the fixes that an image has; the supervisor runs them before a run, `rlbox doctor` at any time."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlbox.doctor.program import RunningProgram
from rlbox.findings import Finding
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.limits import count_usable_cores
from rlbox.values import OWN

# What a shell says that could not start a program: nothing about the fix.
_NOT_RUN = ("Resource temporarily unavailable", "Cannot fork", "Cannot allocate memory", "No space left on device")
ExitCodeAndOutput = tuple[int, str]
TIMEOUT_EXIT_CODE = 124  # of coreutils' timeout


@dataclass(frozen=True, kw_only=True)
class FixCheck:
    id: str
    title: str
    remedy: str
    healed_failure_ids: tuple[str, ...]
    script: str
    is_only_partly_applied: bool = False


def select_fix_checks(manifest: Mapping[str, Any], phase: Literal["build", "run", "doctor"]) -> tuple[FixCheck, ...]:
    rows = [row for row in manifest.get("fixes", ()) if row.get("check") and phase in row["check"].get("when", ())]
    return tuple(
        FixCheck(
            id=str(row["id"]),
            title=str(row["title"]),
            remedy=str(row["remedy"]),
            healed_failure_ids=tuple(map(str, row.get("heals", ()))),
            script=str(row["check"]["run"]),
            is_only_partly_applied=bool(row["check"].get("partial")),
        )
        for row in rows
    )


def make_failed_check_findings(checks: Sequence[FixCheck], outcomes: Iterable[ExitCodeAndOutput]) -> Iterator[Finding]:
    """Yield a finding for each check that failed; `outcomes` are in the order of the checks.

    A check that could not be run, or was too slow, is no finding.
    """
    for check, (code, output) in zip(checks, outcomes, strict=False):
        if code in (0, TIMEOUT_EXIT_CODE) or any(text in output for text in _NOT_RUN):
            continue
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        effect = _("in effect in part") if check.is_only_partly_applied else _("not in effect")
        yield Finding(
            id=check.id,
            title=_("fix {id} is {partial}").format(id=check.id, partial=effect),
            level="note" if check.is_only_partly_applied else "error",
            seen=lines[-1] if lines else _("its check ended with {code}").format(code=code),
            where=_("what should be: {title}").format(title=_(check.title)),
            remedy=check.remedy,
            covers=check.healed_failure_ids,
        )


def add_fix_check_ids_to_breaks(
    findings: Iterable[Finding], checks: Sequence[FixCheck], data_mount: str
) -> list[Finding]:
    """Return the findings; one about the data disk or the stack's files explains every check that reads there too."""
    paths = {"data-disk-": data_mount, "tmp-": "/tmp", "file-": "site-packages", "package-": "site-packages"}  # noqa: S108
    result = []
    for finding in findings:
        path = next((text for prefix, text in paths.items() if finding.id.startswith(prefix)), None)
        ids = tuple(check.id for check in checks if path and finding.level == "error" and path in check.script)
        result.append(replace(finding, breaks=(*finding.breaks, *ids)))
    return result


INSTALL_DIR_VARIABLE = "RLBOX_PLACE"
"""Variable with the folder of what rlbox laid for itself on an applied machine; an image has it at its own path."""
ENGINE_PERCENT_VARIABLE = "RLBOX_ENGINE_PERCENT"
"""Variable for the checks before a run: percent of a GPU that its inference engines take, 0 without one."""
_CHECK_S = 3
_LEAST_S = 0.5
_SHELLS = 4
# Few shells for all: what the hooks of the image set is set once in each, as in a program that the entrypoint starts.
_SCRIPT = f"""
[ ! -r "$0" ] || . "$0" >/dev/null 2>&1
limit=; ! command -v timeout >/dev/null 2>&1 || limit="timeout {_CHECK_S}"
for text; do
    output=$($limit sh -c "$text" 2>&1)
    printf '%s\\0%s\\0' $? "$output"
done
"""


def run_fix_checks_retrying_failed(
    phase: Literal["build", "run", "doctor"],
    manifest: Mapping[str, Any] | None = None,
    total_timeout_s: float = 8.0,
    install_dir: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Finding, ...]:
    """Return a finding for each fix of this image, or applied machine, whose check fails.

    `environ` is what the checks are started with, before the hooks; it names the folder `install_dir` of what rlbox
    laid for itself, where no other is given.
    """
    end = time.monotonic() + total_timeout_s
    install_dir = install_dir or environ.get(INSTALL_DIR_VARIABLE, OWN)
    if manifest is None:
        manifest = read_json_object_or_empty(Path(install_dir, "share/fixes.json"), follow_links=True)
    checks = select_fix_checks(manifest, phase)
    failed = {finding.id for finding in _run_checks(checks, end, install_dir, environ)}
    # Once more: what fails for a moment, as a process ends or a file is written, is no fault.
    return _run_checks([check for check in checks if check.id in failed], end, install_dir, environ)


def _run_checks(
    checks: Sequence[FixCheck], end: float, install_dir: str, environ: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Run checks until `end` (monotonic), a part of them in each of a few shells at once; the findings are in order."""
    shells = min(_SHELLS, math.ceil(count_usable_cores()), len(checks))
    started = []
    for number in range(shells):
        part = checks[number::shells]
        argv = ["sh", "-c", _SCRIPT, f"{install_dir}/libexec/init.sh", *(check.script for check in part)]
        with contextlib.suppress(OSError):  # no process can be started: a limit, which has a finding of its own
            started.append((part, RunningProgram(argv, environ, "")))
    end = max(end, time.monotonic() + _LEAST_S)
    found: dict[str, Finding] = {}
    for part, program in started:
        parts = program.read_output_and_kill_all(end).stdout.split("\0")
        rows = ((parse_digits(code), text) for code, text in zip(parts[0::2], parts[1::2], strict=False))
        outcomes = [(code, text) for code, text in rows if code is not None]
        found |= {finding.id: finding for finding in make_failed_check_findings(part, outcomes)}
    return tuple(found[check.id] for check in checks if check.id in found)
