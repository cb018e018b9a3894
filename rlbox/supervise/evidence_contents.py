"""What an evidence folder holds, file by file."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from rlbox.diagnose.cause import Cause
from rlbox.i18n import _
from rlbox.supervise.evidence_parts import (
    disk_text,
    gpu_text,
    kernel_text,
    limit_text,
    package_text,
    process_text,
    ray_log_text,
    resource_text,
    system_text,
)
from rlbox.supervise.gather import CollectedTexts, Collector, PartUnavailableError
from rlbox.supervise.snapshot import StageFailure
from rlbox.system.safe_files import read_bytes

FILE_DESCRIPTIONS = {
    "REPORT.md": "one page: the cause, what happened in order, the next step",
    "REPORT.json": "the same for programs",
    "first_fatal.txt": "the first fatal line of every log, with 100 lines before and after",
    "facts.json": "job, stage, times, exit codes, gate, command, processes and memory when it failed",
    "packages.txt": "the packages of the stack",
    "environment.txt": "the stage's environment, secrets masked",
    "plan.json": "the effective configuration",
    "overrides.json": "what was changed on the command line",
    "resources.jsonl": "the last samples of what the stage used",
    "gpu.txt": "the GPUs, and who uses them",
    "kernel.txt": "kernel messages since the stage began",
    "processes.txt": "what ran on this machine once the stage was stopped",
    "disks.txt": "free space and inodes",
    "limits.json": "limits of memory, shared memory, processes and files",
    "system.json": "the machine",
    "ray/status.json": "what Ray's head said before it was stopped: jobs, nodes, dead actors",
    "ray/logs.txt": "ends of the logs of Ray's own processes and of its failed workers",
    "hang.json": "what every process waited for",
    "HANG.md": "the hang explained: phase, who waits for what, next step",
    "stacks": "stack of a process when it hung",
    "nccl": "what NCCL recorded of its collectives",
}
"""File, or folder of files, to what it is."""


def list_collectors(failure: StageFailure) -> dict[str, Collector]:
    """Return the parts that are gathered once the stage is stopped, what matters most first."""
    plan, stage, run_dir = failure.plan, failure.stage, failure.run_dir
    folders = (run_dir, Path(plan.paths.data), Path("/dev", "shm"), Path("/tmp"), Path("/"))  # noqa: S108 - only looked at
    parts: dict[str, Collector] = {
        "environment.txt": lambda: _environment(failure),
        "plan.json": lambda: _read(run_dir / "plan.json"),
        "overrides.json": lambda: _read(run_dir / "overrides.json"),
        "packages.txt": lambda: package_text(plan.paths.python),
        "resources.jsonl": lambda: resource_text(run_dir, stage.name),
        "gpu.txt": gpu_text,
        "kernel.txt": lambda: kernel_text(failure.started_at),
        "disks.txt": lambda: disk_text(folders),
        "limits.json": limit_text,
        "system.json": system_text,
        "processes.txt": process_text,
    }
    if ray := stage.ray:
        parts["ray/status.json"] = lambda: _ray(failure)
        parts["ray/logs.txt"] = lambda: ray_log_text(ray)
    return parts


def failure_facts(failure: StageFailure, cause: Cause, gathered: CollectedTexts) -> dict[str, Any]:
    """Return `facts.json`."""
    stage, state, plan = failure.stage, failure.state, failure.plan
    return {
        "schema": 1,
        "run_id": plan.run_id,
        "job": plan.job,
        "target": plan.target,
        "profile": plan.profile,
        "params": dict(plan.params),
        "attempt": plan.attempt,
        "stage": stage.name,
        "job_id": stage.ray.submission_id if stage.ray else "",
        "started_at": failure.started_at,
        "ended_at": failure.ended_at,
        "exit_code": state.exit_code,
        "ray_status": state.ray_status,
        "cause": dataclasses.asdict(cause),
        "services": [dataclasses.asdict(service) for service in state.services],
        "gate": [dataclasses.asdict(rule) for rule in state.gate],
        "command": list(stage.argv),
        "machine": dataclasses.asdict(failure.snapshot) if failure.snapshot else {},
        "packages": gathered.texts.get("packages.txt", "").split(),
        "environment": dict(failure.masks.environment(_variables(failure))),
    }


def _variables(failure: StageFailure) -> dict[str, str]:
    return {**os.environ, **failure.plan.env, **failure.stage.env, **failure.given}


def _environment(failure: StageFailure) -> str:
    rows = failure.masks.environment(_variables(failure))
    return "".join(f"{name}={json.dumps(value, ensure_ascii=False)}\n" for name, value in rows.items())


def _read(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except OSError as error:
        raise PartUnavailableError(f"{path.name}: {error.strerror}") from error


def _ray(failure: StageFailure) -> str:
    snapshot = failure.snapshot
    if not snapshot or not snapshot.ray:
        raise PartUnavailableError(_("the head was not asked"))
    return json.dumps(snapshot.ray, indent=1, ensure_ascii=False, default=str) + "\n"
