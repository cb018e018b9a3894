"""What the sandbox answers: SandboxFusion's fields, and those of rlbox below `rlbox`."""

from __future__ import annotations

from typing import Any

from rlbox.sandbox.plan import PlanOutcome, format_isolation_strength

VERSION = 3
"""Counts up when the same program may get another verdict: scores of two versions are not compared."""
_NOTES = {
    "cpu": "it took more processor time than it may",
    "sleep": "it slept for as long as it may run",
    "wall": "it neither slept nor took processor time that was seen",
    "memory": "it took more memory than it may",
    "disk": "it wrote more than it may",
    "output": "it printed more than it may",
    "tasks": "it started more processes than it may",
}
_TIME_LIMITS = ("cpu", "sleep", "wall")
_FAILURES = ("start", "cancelled")
"""Ends that say nothing about a program."""


def build_run_response(outcome: PlanOutcome, *, build: PlanOutcome | None = None) -> dict[str, Any]:
    """Return the answer to `/run_code`; `outcome` is `build`, the compiler's own, where that failed."""
    if outcome.limit in _FAILURES:
        return build_error_response(outcome.message or "the sandbox was stopped")
    result = None if outcome is build else _build_command_result(outcome)
    succeeded = result is not None and result["status"] == "Finished" and result["return_code"] == 0
    results = {"compile_result": _build_command_result(build) if build else None, "run_result": result}
    return _build_response(outcome, succeeded, {**results, "executor_pod_name": None, "files": outcome.files})


def build_verdict_response(outcome: PlanOutcome) -> dict[str, Any]:
    """Return the answer to `/check`: `verdict` is accepted, wrong, failed or timeout, and `detail` says why.

    Accepted is the checker's own last line and nothing else: neither how the program ended nor what it printed.
    """
    if outcome.limit in _FAILURES:
        return build_error_response(outcome.message or "the sandbox was stopped")
    result, _, detail = outcome.verdict.partition(" ")
    if outcome.limit:
        verdict = "timeout" if outcome.limit in _TIME_LIMITS else "failed"
        detail = _NOTES[outcome.limit]
    elif result == "passed" and not detail:
        verdict = "accepted"
    else:
        verdict = result if result in ("wrong", "failed") else "failed"
        if not result:
            detail = "the checker ended without a verdict"
    fields = {"verdict": verdict, "detail": detail, "run_result": _build_command_result(outcome, 1)}
    return _build_response(outcome, verdict == "accepted", fields)


def build_error_response(message: str) -> dict[str, Any]:
    """Return the answer where the sandbox itself failed, which says nothing about the program."""
    empty: dict[str, Any] = {"compile_result": None, "run_result": None, "executor_pod_name": None, "files": {}}
    return {"status": "SandboxError", "message": message, **empty}


def _build_command_result(outcome: PlanOutcome, number: int = 0) -> dict[str, Any]:
    """Return the result of one program; `execution_time` is processor time."""
    program, limit = outcome.programs[number], outcome.limit
    over_time = limit in _TIME_LIMITS
    ended = program.return_code is not None and not limit
    note = f"sandbox: {_NOTES[limit]}\n" if limit in _NOTES and limit != "cpu" else ""
    return {
        "status": "TimeLimitExceeded" if over_time else "Finished" if ended else "Error",
        "execution_time": outcome.cpu_s,
        "return_code": None if over_time else program.return_code,
        "stdout": program.stdout,
        "stderr": program.stderr + note,
    }


def _build_response(outcome: PlanOutcome, succeeded: bool, fields: dict[str, Any]) -> dict[str, Any]:
    isolation = {
        "version": VERSION,
        "strength": format_isolation_strength(outcome.layers),
        "missing": outcome.missing,
        "limit": outcome.limit,
        "cpu_s": outcome.cpu_s,
        "wall_s": outcome.wall_s,
        "memory_mb": outcome.memory_mb,
        "alive": outcome.has_live_processes,
    }
    return {"status": "Success" if succeeded else "Failed", "message": "", **fields, "rlbox": isolation}
