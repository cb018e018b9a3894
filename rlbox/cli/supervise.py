"""`python -m rlbox.cli.supervise RUN_DIR`: carry out the plan of a run directory. Started by rlbox, not by people."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.act.interrupt import Interrupt
from rlbox.errors import RlboxError, SpecError

if TYPE_CHECKING:
    from rlbox.act.supervisor import StageFailure
    from rlbox.plan.causes import Cause
    from rlbox.plan.run import RunPlan

PLAN_FILE = "plan.json"


def main(argv: list[str]) -> int:
    """Carry out the run of the directory `argv[0]`; return the exit code.

    Standard error gets one line per change of state; everything else is in the directory.
    """
    interrupt = Interrupt()
    interrupt.install()  # before the slow imports, so that a signal is never met by the default
    try:
        return _supervise(argv, interrupt)
    except RlboxError as error:
        _tell(f"error: {error}")
        return error.exit_code


def _supervise(argv: list[str], interrupt: Interrupt) -> int:
    from rlbox.act.supervisor import carry_out_run
    from rlbox.plan.masks import Masks

    if len(argv) != 1:
        raise SpecError("supervise takes one run directory")
    run_dir = Path(argv[0]).resolve()
    return carry_out_run(
        _load_plan(run_dir),
        run_dir,
        interrupt=interrupt,
        masks=Masks(os.environ),
        on_failure=collect_evidence,
        on_event=_tell_event,
    )


def collect_evidence(failure: StageFailure) -> Cause:
    """Quote the first fatal line and write the evidence; a disk that is too full for it does not hide the cause."""
    from rlbox.act.snapshot import probe_packages
    from rlbox.report.evidence import explain_failure, write_evidence

    cause, fatal = explain_failure(failure)
    try:
        write_evidence(failure, cause, fatal, probe_packages(failure.plan.paths.python))
    except OSError as error:
        _tell(f"evidence was not written: {error.strerror}")
    return cause


def _load_plan(run_dir: Path) -> RunPlan:
    from rlbox.plan.run import load_run_plan

    path = run_dir / PLAN_FILE
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise SpecError(f"there is no {PLAN_FILE} to carry out", where=str(path)) from error
    except (OSError, ValueError) as error:
        raise SpecError(f"{PLAN_FILE} cannot be read: {error}", where=str(path)) from error
    plan = load_run_plan(data)
    _check_patterns(plan)
    return plan


def _check_patterns(plan: RunPlan) -> None:
    for stage in plan.stages:
        for rule in (*stage.require, *stage.forbid):
            try:
                re.compile(rule.pattern)
            except re.error as error:
                what = f"stage {stage.name}: {rule.pattern!r} is not a regular expression: {error}"
                raise SpecError(what, where=PLAN_FILE) from error


def _tell_event(event: Mapping[str, Any]) -> None:
    match event["event"]:
        case "run":
            _tell(f"run {event['state']}")
        case "stage":
            _tell(f"{event['stage']}: {event['state']}" + (f": {event['cause']}" if event.get("cause") else ""))
        case "service":
            _tell(f"{event['stage']}: service {event['service']} {event['state']}")
        case "plot":
            _tell(f"curves: {event['plot']['state']} {event['plot']['detail']}".rstrip())
        case _:
            pass


def _tell(text: str) -> None:
    try:
        sys.stderr.write(f"rlbox: {text}\n")
        sys.stderr.flush()
    except OSError:
        return  # the terminal is gone; the run goes on


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
