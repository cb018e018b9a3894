"""What an evidence folder holds, and how its parts are collected: each bounded in time and size."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rlbox.amounts import decimal_size_text, exact_duration_text, utc_now
from rlbox.diagnose.cause import Cause
from rlbox.diagnose.first_fatal import FatalPosition, find_first_fatal
from rlbox.doctor.limits import probe_limits
from rlbox.doctor.ray_state import fetch_or_find_job_or_latest_session_dir, fetch_ray_state_or_error
from rlbox.errors import RlboxError
from rlbox.job.plan import RayJobPlan, RunPlan, StagePlan
from rlbox.record.resources import RESOURCES_FILE
from rlbox.record.state import StageState
from rlbox.secrets.masks import SecretMasker
from rlbox.system.command import run_command
from rlbox.system.files import free_bytes_or_0
from rlbox.system.gpu import GpuStatus, query_gpus_or_empty
from rlbox.system.identity import get_user_name_or_uid
from rlbox.system.json_files import iter_tail_lines_or_raise
from rlbox.system.limits import CgroupMemory, probe_cgroup_memory
from rlbox.system.ports import describe_port_holder_unless_free
from rlbox.system.process_table import (
    Process,
    find_process_owner_or_uid_or_empty,
    probe_processes,
    probe_resident_bytes_or_0,
    read_cmdline_or_empty,
)
from rlbox.system.safe_files import read_bytes
from rlbox.system.tail import read_tail_lines_or_empty
from rlbox.values import Command

_SHARED_MEMORY = Path("/dev", "shm")


@dataclass(frozen=True, kw_only=True)
class ProcessSnapshot:
    pid: int
    parent: int
    state: str
    resident_bytes: int
    command: str


@dataclass(frozen=True, kw_only=True)
class MachineSnapshot:
    taken_at: str
    processes: tuple[ProcessSnapshot, ...]
    memory: CgroupMemory
    free_bytes: Mapping[str, int]
    ports: Mapping[str, str]
    gpus: tuple[GpuStatus, ...] = ()
    ray: Mapping[str, Any] = field(default_factory=dict)


def take_snapshot(plan: RunPlan, stage: StagePlan, run_dir: Path, processes: Iterable[Process]) -> MachineSnapshot:
    ports = {name: number for service in stage.services for name, number in service.ports.items()}
    return MachineSnapshot(
        taken_at=utc_now(),
        processes=tuple(
            ProcessSnapshot(
                pid=process.pid,
                parent=process.parent_pid,
                state=process.state,
                resident_bytes=probe_resident_bytes_or_0(process.pid),
                command=read_cmdline_or_empty(process.pid) or process.name,
            )
            for process in processes
        ),
        memory=probe_cgroup_memory(),
        free_bytes={str(path): free_bytes_or_0(path) for path in (run_dir, Path(plan.paths.data), _SHARED_MEMORY)},
        ports={f"{name} {number}": describe_port_holder_unless_free(number) or "" for name, number in ports.items()},
        gpus=query_gpus_or_empty(),
        ray=fetch_ray_state_or_error(stage.ray) if stage.ray else {},
    )


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A stage that failed, nothing of it being left; `state` is what `run.json` says of it.

    `fatals` has the first fatal line of each log that holds one, by the log's path below the run directory. `snapshot`
    is from the moment at which it failed, `masked_secret_env` the variables of its secrets, without their values.
    """

    run_dir: Path
    plan: RunPlan
    stage: StagePlan
    state: StageState
    cause: Cause
    started_at: str
    ended_at: str
    fatals: Mapping[str, FatalPosition]
    snapshot: MachineSnapshot | None
    masks: SecretMasker
    masked_secret_env: Mapping[str, str] = field(default_factory=dict)


PART_BYTES = 1 << 20

Collector = Callable[[], str]


class NoEvidenceError(Exception):
    """What a part would hold is not on this machine, or may not be read; the message says why."""


@dataclass(frozen=True, kw_only=True)
class CollectedTexts:
    texts: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)


def collect_texts_within_time(collectors: Mapping[str, Collector], limit_s: float) -> CollectedTexts:
    """Return what all `collectors`, by name, gave within `limit_s`; one that hangs in the kernel is left behind."""
    found, why = dict[str, str](), dict[str, str]()

    def run(name: str, collect: Collector) -> None:
        try:
            text = collect()
            if len(text) > PART_BYTES:  # cut at a line's end: half a secret would not be masked
                kept = text[: text.rfind("\n", 0, PART_BYTES) + 1]
                text = f"{kept}... cut here: {len(text) - len(kept)} more characters\n"
            found[name] = text
        except Exception as error:  # whatever a collector runs into, the others and the cause go on
            why[name] = str(error) if isinstance(error, NoEvidenceError) else f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=part, daemon=True) for part in collectors.items()]
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = f"not done after {exact_duration_text(limit_s)}"
    texts, missing = dict(found), dict(why)
    return CollectedTexts(
        texts={name: texts[name] for name in collectors if name in texts},
        missing={name: missing.get(name, late) for name in collectors if name not in texts},
    )


_TOOL_S = 5.0
_KERNEL = re.compile(
    r"Xid|NVRM|nvidia|oom|Out of memory|Killed process|blocked for more than|I/O error|EXT4-fs|XFS|nvme|segfault|MCE",
    re.IGNORECASE,
)
_KERNEL_ROWS = 200
_SAMPLES = 120
_RAY_SPEAKERS = ("raylet", "gcs_server", "monitor", "dashboard")
_RAY_FILES = 24
_RAY_TAIL = 32 * 1024
_COMMAND_CHARS = 1000
_LIST_PACKAGES = (
    "import importlib.metadata as m\n"
    "print('\\n'.join(sorted({f\"{d.metadata['Name']}=={d.version}\" for d in m.distributions()})))"
)


def _collect_gpu_text() -> str:
    users = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    return "\n".join([_tool("nvidia-smi"), _tool("nvidia-smi", users, "--format=csv")])


def _collect_kernel_text(since: str) -> str:
    begin, rows = datetime.fromisoformat(since) - timedelta(seconds=5), []
    for row in filter(_KERNEL.search, _tool("dmesg", "--time-format", "iso").splitlines()):
        with contextlib.suppress(ValueError, TypeError):
            if datetime.fromisoformat(row.split(" ", 1)[0].replace(",", ".")) >= begin:
                rows.append(row)
    text = "\n".join(rows[-_KERNEL_ROWS:])
    return f"{text or 'no message about GPUs, memory, disks or crashes in this time'}\n"


def _collect_process_text() -> str:
    """Return every process that is visible from here, the largest first; of other users' their names alone."""
    rows = sorted((_process_row(process) for process in probe_processes().values()), reverse=True)
    head = f"{'memory':>9} {'pid':>8} {'parent':>8} {'user':<12} state command"
    return "\n".join([head, *(text for _size, text in rows)]) + "\n"


def _process_row(process: Process) -> tuple[int, str]:
    owner, size = find_process_owner_or_uid_or_empty(process.pid), probe_resident_bytes_or_0(process.pid)
    command = read_cmdline_or_empty(process.pid) if owner == get_user_name_or_uid() else ""
    if len(command) > _COMMAND_CHARS:  # cut between two words: half a secret would not be masked
        command = f"{command[:_COMMAND_CHARS].rpartition(' ')[0]} ..."
    shown = f"{process.state:5} {command or f'[{process.name}]'}"
    return size, f"{decimal_size_text(size):>9} {process.pid:8d} {process.parent_pid:8d} {owner:<12} {shown}"


def _collect_disk_text(folders: Iterable[Path]) -> str:
    lines = [f"{'free':>9} {'of':>9} {'free inodes':>12} folder"]
    for folder in folders:
        try:
            facts = os.statvfs(folder)
        except OSError as error:
            lines.append(f"{'':9} {'':9} {'':12} {folder}: {error.strerror}")
            continue
        free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
        lines.append(f"{decimal_size_text(free):>9} {decimal_size_text(total):>9} {facts.f_favail:12d} {folder}")
    return "\n".join(lines) + "\n"


def _collect_system_text() -> str:
    name = platform.uname()
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return _json(
        {
            "uname": " ".join((name.system, name.node, name.release, name.version, name.machine)),
            "os": release.get("PRETTY_NAME", ""),
            "cpus": os.cpu_count(),
            "load": list(os.getloadavg()),
            "uptime_s": float(Path("/proc/uptime").read_text().split()[0]),
        }
    )


def _collect_package_text(python: str) -> str:
    text = _tool(python, "-c", _LIST_PACKAGES)
    if not text.strip():
        raise NoEvidenceError(f"{python} lists no packages")
    return text


def _collect_resource_text(run_dir: Path, stage: str) -> str:
    mark = f'"stage":{json.dumps(stage)}'
    rows: deque[str] = deque(maxlen=_SAMPLES)
    try:
        lines = (row.decode("utf-8", "replace") for row in iter_tail_lines_or_raise(run_dir / RESOURCES_FILE))
        rows.extend(row for row in lines if mark in row)
    except OSError as error:
        raise NoEvidenceError(f"{RESOURCES_FILE}: {error.strerror}") from error
    if not rows:
        raise NoEvidenceError("the stage ended before its first sample")
    return "".join(rows)


def _collect_ray_log_text(ray: RayJobPlan) -> str:
    """Return the ends of the logs of Ray's own processes, and of those workers that met a fatal line."""
    folder = (fetch_or_find_job_or_latest_session_dir(ray) / "logs").resolve()
    try:
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size]
    except OSError as error:
        raise NoEvidenceError(f"{folder}: {error.strerror}") from error
    own = [path for path in files if path.name.startswith(_RAY_SPEAKERS)]
    workers = [path for path in files if path.name.startswith("worker-") and find_first_fatal(path)]
    chosen = [*(path for path in own if path.suffix == ".err"), *workers, *(p for p in own if p.suffix != ".err")]
    ends = ((path.name, read_tail_lines_or_empty(path, _RAY_TAIL)) for path in chosen[:_RAY_FILES])
    return "\n".join(f"==> {name} <==\n{end.decode('utf-8', 'replace')}" for name, end in ends)


def _tool(*words: str) -> str:
    if not shutil.which(words[0]):
        raise NoEvidenceError(f"no {words[0]} here")
    try:
        outcome = run_command(Command(argv=words, timeout_s=_TOOL_S))
    except (RlboxError, OSError) as error:
        raise NoEvidenceError(str(error)) from error
    if not outcome.ok:
        last = " ".join((outcome.stderr or outcome.stdout).strip().splitlines()[-1:])
        raise NoEvidenceError(f"{words[0]}: exit code {outcome.exit_code}: {last}")
    return outcome.stdout


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n"


def list_evidence_collectors(failure: StageFailure) -> dict[str, Collector]:
    """Return the parts that are gathered once the stage is stopped, what matters most first."""
    plan, stage, run_dir = failure.plan, failure.stage, failure.run_dir
    folders = (run_dir, Path(plan.paths.data), Path("/dev", "shm"), Path("/tmp"), Path("/"))  # noqa: S108 - only looked at
    parts: dict[str, Collector] = {
        "environment.txt": lambda: _environment(failure),
        "plan.json": lambda: _read(run_dir / "plan.json"),
        "overrides.json": lambda: _read(run_dir / "overrides.json"),
        "packages.txt": lambda: _collect_package_text(plan.paths.python),
        "resources.jsonl": lambda: _collect_resource_text(run_dir, stage.name),
        "gpu.txt": _collect_gpu_text,
        "kernel.txt": lambda: _collect_kernel_text(failure.started_at),
        "disks.txt": lambda: _collect_disk_text(folders),
        "limits.json": lambda: _json(
            {"memory": dataclasses.asdict(probe_cgroup_memory()), "limits": dataclasses.asdict(probe_limits())}
        ),
        "system.json": _collect_system_text,
        "processes.txt": _collect_process_text,
    }
    if ray := stage.ray:
        parts["ray/status.json"] = lambda: _ray_status(failure)
        parts["ray/logs.txt"] = lambda: _collect_ray_log_text(ray)
    return parts


def failure_to_json(failure: StageFailure, cause: Cause) -> dict[str, Any]:
    """Return what `REPORT.json` and `facts.json` both say."""
    stage, state, plan = failure.stage, failure.state, failure.plan
    return {
        "schema": 1,
        "run_id": plan.run_id,
        "job": plan.job,
        "target": plan.target,
        "profile": plan.profile,
        "attempt": plan.attempt,
        "stage": stage.name,
        "job_id": stage.ray.submission_id if stage.ray else "",
        "started_at": failure.started_at,
        "ended_at": failure.ended_at,
        "exit_code": state.exit_code,
        "ray_status": state.ray_status,
        "cause": cause.as_json(),
    }


def build_failure_facts_json(failure: StageFailure, cause: Cause, gathered: CollectedTexts) -> dict[str, Any]:
    return {
        **failure_to_json(failure, cause),
        "params": dict(failure.plan.params),
        "services": [dataclasses.asdict(service) for service in failure.state.services],
        "gate": [dataclasses.asdict(rule) for rule in failure.state.gate],
        "command": list(failure.stage.argv),
        "machine": dataclasses.asdict(failure.snapshot) if failure.snapshot else {},
        "packages": gathered.texts.get("packages.txt", "").split(),
        "environment": _mask_environment(failure),
    }


def _mask_environment(failure: StageFailure) -> dict[str, str]:
    env = {**os.environ, **failure.plan.env, **failure.stage.env, **failure.masked_secret_env}
    return dict(failure.masks.mask_environment(env))


def _environment(failure: StageFailure) -> str:
    rows = _mask_environment(failure)
    return "".join(f"{name}={json.dumps(value, ensure_ascii=False)}\n" for name, value in rows.items())


def _read(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except OSError as error:
        raise NoEvidenceError(f"{path.name}: {error.strerror}") from error


def _ray_status(failure: StageFailure) -> str:
    if failure.snapshot and failure.snapshot.ray:
        return _json(failure.snapshot.ray)
    raise NoEvidenceError("the head was not asked")
