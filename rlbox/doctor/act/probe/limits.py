"""Read the limits of this process: shared memory, cgroups of both versions, memory, rlimits."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

from rlbox.doctor.judge.limits import SHM, UNLIMITED, LimitFacts

_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2^63 for none
_NAMES = ("nofile", "fsize", "as", "data", "stack", "cpu", "nproc")


def probe_limits() -> LimitFacts:
    """Return the limits that hold for a process started from here."""
    total, free, error, largest = _shm()
    memory_max, used = _cgroup("memory", "max", "limit_in_bytes"), _cgroup("memory", "current", "usage_in_bytes")
    spare = _available()
    if memory_max is not None and used is not None:
        spare = min(spare, memory_max - used + _reclaimable()) if spare is not None else memory_max - used
    return LimitFacts(
        shm_total=total,
        shm_free=free,
        shm_error=error,
        shm_largest=largest,
        pids_max=_cgroup("pids", "max", "max"),
        pids_now=_cgroup("pids", "current", "current") or 0,
        memory_max=memory_max,
        memory_free=spare,
        cores=len(os.sched_getaffinity(0)),
        cpus=_cpus(),
        rlimits={name: _rlimit(name) for name in _NAMES},
    )


def _rlimit(name: str) -> int:
    """Return the limit that holds; of open files the hard one, for Ray and Python servers raise it themselves."""
    soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    limit = hard if name == "nofile" else soft
    if name == "nproc" and os.getuid() == 0:  # the kernel does not hold root to it
        return UNLIMITED
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _shm() -> tuple[int | None, int, str, tuple[tuple[str, int], ...]]:
    if not os.path.isdir(SHM):
        return None, 0, "", ()
    facts = os.statvfs(SHM)
    error = ""
    try:
        with tempfile.TemporaryFile(dir=SHM) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as problem:
        error = "" if facts.f_bavail == 0 else str(problem.strerror)
    return facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize, error, _largest()


def _largest() -> tuple[tuple[str, int], ...]:
    found = []
    for folder, _, names in os.walk(SHM):
        for name in names:
            try:
                found.append((os.path.join(folder, name), os.lstat(os.path.join(folder, name)).st_blocks * 512))
            except OSError:
                continue
    return tuple(sorted(found, key=lambda row: -row[1])[:3])


def _cgroup(controller: str, name: str, old_name: str) -> int | None:
    """Return a number of this process's cgroup; None for no limit, or where it cannot be read."""
    for path in _files(controller, name, old_name):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None
    return None


def _files(controller: str, name: str, old_name: str) -> list[Path]:
    """Return where the number may be: version 2, then version 1; a container sees its own group as the root."""
    groups = _own_groups()
    files = []
    for group in dict.fromkeys((groups.get("", "/"), "/")):
        files.append(_CGROUPS / group.lstrip("/") / f"{controller}.{name}")
    for group in dict.fromkeys((groups.get(controller, "/"), "/")):
        files.append(_CGROUPS / controller / group.lstrip("/") / f"{controller}.{old_name}")
    return files


def _own_groups() -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        _, names, group = line.split(":", 2)
        found |= dict.fromkeys(names.split(","), group)
    return found


def _cpus() -> float | None:
    groups = _own_groups()
    for group in dict.fromkeys((groups.get("", "/"), "/")):
        try:
            quota, period = (_CGROUPS / group.lstrip("/") / "cpu.max").read_text(encoding="ascii").split()
            return None if quota == "max" else int(quota) / int(period)
        except (OSError, ValueError):
            continue
    for group in dict.fromkeys((groups.get("cpu", "/"), "/")):
        folder = _CGROUPS / "cpu" / group.lstrip("/")
        try:
            quota_us, period_us = (
                int((folder / f"cpu.cfs_{n}_us").read_text(encoding="ascii")) for n in ("quota", "period")
            )
            return None if quota_us < 0 else quota_us / period_us
        except (OSError, ValueError):
            continue
    return None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _reclaimable() -> int:
    """Return the bytes of this cgroup that hold copies of files and can be dropped at once."""
    for path in _files("memory", "stat", "stat"):
        try:
            rows = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            continue
        return int(rows.get("inactive_file", rows.get("total_inactive_file", 0)))
    return 0
