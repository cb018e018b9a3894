"""What the sandbox answers: SandboxFusion's fields, and what is ours below `rlbox`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlbox.sandbox.isolation import IsolationLevel

VERSION = 1
"""Counts up when the same program may get another verdict: scores of two versions are not compared."""
_SAYS = {
    "sleep": "it slept for as long as it may run",
    "wall": "it neither slept nor took processor time that was seen",
    "memory": "it took more memory than it may",
    "disk": "it wrote more than it may",
    "output": "it printed more than it may",
    "tasks": "it started more processes than it may",
    "cancelled": "the sandbox was stopped",
}
_OVER = ("cpu", "sleep", "wall")


def command_result(outcome: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """Return what SandboxFusion calls a command's result; `execution_time` is processor time."""
    program, limit = outcome["programs"][number], outcome["limit"]
    status = "TimeLimitExceeded" if limit in _OVER else "Error" if limit else "Finished"
    if program["return_code"] is None or limit == "cancelled":
        status = "TimeLimitExceeded" if limit in _OVER else "Error"
    note = f"sandbox: {_SAYS[limit]}\n" if limit in _SAYS else ""
    return {
        "status": status,
        "execution_time": outcome["cpu_s"],
        "return_code": None if limit in _OVER else program["return_code"],
        "stdout": program["stdout"],
        "stderr": program["stderr"] + note,
    }


def answer(outcome: Mapping[str, Any], *, build: Mapping[str, Any] | None = None, runs: bool = True) -> dict[str, Any]:
    """Return the answer to `/run_code`: `outcome` of the program, `build` of its compiler; not `runs`: that failed."""
    if problem := _problem(outcome):
        return problem
    result = command_result(outcome) if runs else None
    compiled = command_result(build) if build else None
    good = bool(result) and result["status"] == "Finished" and result["return_code"] == 0  # type: ignore[index]
    return {
        "status": "Success" if good else "Failed",
        "message": "",
        "compile_result": compiled,
        "run_result": result,
        "executor_pod_name": None,
        "files": outcome["files"],
        "rlbox": report_isolation(outcome),
    }


def verdict(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to `/check`: `verdict` is accepted, wrong, failed or timeout, and `detail` says why.

    Accepted is the checker's own last word and nothing else: neither how the program ended nor what it printed.
    """
    if problem := _problem(outcome):
        return problem
    limit, word = outcome["limit"], outcome["word"]
    first, _, detail = word.partition(" ")
    if limit:
        found, detail = "timeout" if limit in _OVER else "failed", _SAYS.get(limit, "more processor time than it may")
    elif first == "passed" and not detail:
        found = "accepted"
    else:
        found = first if first in ("wrong", "failed") else "failed"
        detail = detail or "the checker ended without a word"
    return {
        "status": "Success" if found == "accepted" else "Failed",
        "message": "",
        "verdict": found,
        "detail": detail,
        "run_result": command_result(outcome, 1),
        "rlbox": report_isolation(outcome),
    }


def report_isolation(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is ours in an answer."""
    strength = IsolationLevel.of(outcome["layers"], dict(outcome["missing"]))
    kept = ("limit", "cpu_s", "wall_s", "memory_mb", "alive")
    known = {"version": VERSION, "strength": strength.name, "missing": strength.missing}
    return {**known, **{name: outcome[name] for name in kept}}


def report_error(message: str) -> dict[str, Any]:
    """Return the answer when the sandbox itself failed, which says nothing about the program."""
    empty: dict[str, Any] = {"compile_result": None, "run_result": None, "executor_pod_name": None, "files": {}}
    return {"status": "SandboxError", "message": message, **empty}


def _problem(told: Mapping[str, Any]) -> dict[str, Any] | None:
    if told["limit"] == "start":
        return report_error(told["message"])
    if told["limit"] == "cancelled":
        return report_error("the sandbox was stopped")
    return None
