"""What the machine tells of a failed stage: GPUs, kernel, processes, disks, limits, system, packages, Ray's logs."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rlbox.amounts import size_text
from rlbox.diagnose.first_fatal import find_first_fatal
from rlbox.doctor.limits import probe_limits
from rlbox.doctor.ray_state import find_job_session
from rlbox.errors import RlboxError
from rlbox.i18n import _
from rlbox.job.plan import RayPlan
from rlbox.record.resources import RESOURCES_FILE
from rlbox.supervise.gather import PartUnavailableError
from rlbox.system.command import run_command
from rlbox.system.identity import user_name
from rlbox.system.json_files import read_lines
from rlbox.system.limits import probe_cgroup_memory
from rlbox.system.process_table import (
    Process,
    find_process_owner,
    probe_command_line,
    probe_processes,
    probe_resident_bytes,
)
from rlbox.system.tail import read_last_bytes
from rlbox.values import Command

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
_WORDS = 1000
_PACKAGES_S = 10.0
_LIST_PACKAGES = (
    "import importlib.metadata as m\n"
    "print('\\n'.join(sorted({f\"{d.metadata['Name']}=={d.version}\" for d in m.distributions()})))"
)


def gpu_text() -> str:
    """Return what `nvidia-smi` prints, and every process that computes on a GPU.

    Raises
    ------
    NotHere
        There is no driver, or it does not answer.
    """
    users = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    shown = [_tool("nvidia-smi"), _tool("nvidia-smi", users, "--format=csv")]
    return "\n".join(shown)


def kernel_text(since: str) -> str:
    """Return the kernel's messages since the time `since` (ISO 8601) about GPUs (Xid), memory, disks and crashes.

    Raises
    ------
    NotHere
        They may not be read from here.
    """
    begin = datetime.fromisoformat(since) - timedelta(seconds=5)
    rows = [row for row in _tool("dmesg", "--time-format", "iso").splitlines() if _KERNEL.search(row)]
    rows = [row for row in rows if _is_since(row, begin)][-_KERNEL_ROWS:]
    return "\n".join(rows) + "\n" if rows else "no message about GPUs, memory, disks or crashes in this time\n"


def _is_since(row: str, begin: datetime) -> bool:
    try:
        return datetime.fromisoformat(row.split(" ", 1)[0].replace(",", ".")) >= begin
    except (ValueError, TypeError):
        return False


def process_text() -> str:
    """Return every process that is visible from here, the largest first; of other users' their names alone."""
    rows = sorted((_process_row(process) for process in probe_processes().values()), reverse=True)
    return (
        "\n".join([f"{'memory':>9} {'pid':>8} {'parent':>8} {'user':<12} state command", *(text for __, text in rows)])
        + "\n"
    )


def _process_row(process: Process) -> tuple[int, str]:
    owner = find_process_owner(process.pid)
    size = probe_resident_bytes(process.pid)
    words = _cut(probe_command_line(process.pid)) if owner == user_name() else ""
    shown = f"{process.state:5} {words or f'[{process.name}]'}"
    return size, f"{size_text(size):>9} {process.pid:8d} {process.parent:8d} {owner:<12} {shown}"


def _cut(words: str) -> str:
    """Return the beginning of a command line, cut between two words: half a secret would not be masked."""
    return words if len(words) <= _WORDS else f"{words[:_WORDS].rpartition(' ')[0]} ..."


def disk_text(folders: Iterable[Path]) -> str:
    """Return free and total space and inodes of the disks that hold `folders`."""
    lines = [f"{'free':>9} {'of':>9} {'free inodes':>12} folder"]
    for folder in dict.fromkeys(folders):
        try:
            facts = os.statvfs(folder)
        except OSError as error:
            lines.append(f"{'':9} {'':9} {'':12} {folder}: {error.strerror}")
            continue
        free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
        lines.append(f"{size_text(free):>9} {size_text(total):>9} {facts.f_favail:12d} {folder}")
    return "\n".join(lines) + "\n"


def limit_text() -> str:
    """Return the limits of memory, shared memory, processes and files as JSON."""
    facts = {"memory": dataclasses.asdict(probe_cgroup_memory()), "limits": dataclasses.asdict(probe_limits())}
    return _json(facts)


def system_text() -> str:
    """Return kernel, machine, boot time and load as JSON."""
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


def package_text(python: str) -> str:
    """Return `name==version` of everything installed for the interpreter `python`, sorted, one a line.

    Of a virtual environment the names of its folders tell, a hundred times faster than the interpreter would.

    Raises
    ------
    NotHere
        There is no package, or the interpreter does not tell.
    """
    names = [path.name.removesuffix(".dist-info") for path in _own_packages(Path(python).parent.parent)]
    rows = sorted({"==".join(name.rpartition("-")[::2]) for name in names}) or _told_packages(python)
    if not rows:
        raise PartUnavailableError(_("{python} lists no packages").format(python=python))
    return "\n".join(rows) + "\n"


def _own_packages(prefix: Path) -> list[Path]:
    """Return the folders that describe the packages of a virtual environment which sees no others."""
    try:
        config = (prefix / "pyvenv.cfg").read_text("utf-8", "replace").replace(" ", "").lower()
    except OSError:
        return []
    shared = "include-system-site-packages=true" in config
    return [] if shared else list(prefix.glob("lib/python3*/site-packages/*.dist-info"))


def _told_packages(python: str) -> list[str]:
    try:
        outcome = run_command(Command(argv=(python, "-c", _LIST_PACKAGES), timeout_s=_PACKAGES_S))
    except (RlboxError, OSError):
        return []
    return outcome.stdout.split() if outcome.ok else []


def resource_text(run_dir: Path, stage: str) -> str:
    """Return the last samples of what the stage used, one JSON object a line.

    Raises
    ------
    NotHere
        None was taken.
    """
    mark = f'"stage": {json.dumps(stage)}'
    rows: deque[str] = deque(maxlen=_SAMPLES)
    try:
        lines = (row.decode("utf-8", "replace") for row in read_lines(run_dir / RESOURCES_FILE))
        rows.extend(row for row in lines if mark in row or mark.replace(": ", ":") in row)
    except OSError as error:
        raise PartUnavailableError(f"{RESOURCES_FILE}: {error.strerror}") from error
    if not rows:
        raise PartUnavailableError(_("the stage ended before its first sample"))
    return "".join(rows)


def ray_log_text(ray: RayPlan) -> str:
    """Return the ends of the logs of Ray's own processes, and of those workers that met a fatal line.

    Raises
    ------
    NotHere
        There is no session.
    """
    folder = (find_job_session(ray) / "logs").resolve()
    try:
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size]
    except OSError as error:
        raise PartUnavailableError(f"{folder}: {error.strerror}") from error
    own = [path for path in files if path.name.startswith(_RAY_SPEAKERS)]
    workers = [path for path in files if path.name.startswith("worker-") and find_first_fatal(path)]
    chosen = [*(path for path in own if path.suffix == ".err"), *workers, *(p for p in own if p.suffix != ".err")]
    ends = ((path.name, read_last_bytes(path, _RAY_TAIL).decode("utf-8", "replace")) for path in chosen[:_RAY_FILES])
    return "\n".join(f"==> {name} <==\n{end}" for name, end in ends)


def _tool(*words: str) -> str:
    if not shutil.which(words[0]):
        raise PartUnavailableError(_("no {word} here").format(word=words[0]))
    try:
        outcome = run_command(Command(argv=words, timeout_s=_TOOL_S))
    except (RlboxError, OSError) as error:
        raise PartUnavailableError(str(error)) from error
    if not outcome.ok:
        last = (outcome.stderr or outcome.stdout).strip().splitlines()[-1:]
        raise PartUnavailableError(
            _("{word}: exit code {exit_code}: {last}").format(
                word=words[0], exit_code=outcome.exit_code, last=" ".join(last)
            )
        )
    return outcome.stdout


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n"
