"""Read the limits of this process: shared memory, cgroups of both versions, memory, rlimits."""

from __future__ import annotations

import os
import resource
import tempfile

from rlbox.doctor.judge.limits import SHM, UNLIMITED, LimitFacts
from rlbox.system.limits import available_memory, cpu_quota, read_group_number

_NAMES = ("nofile", "fsize", "as", "data", "stack", "cpu", "nproc")


def probe_limits() -> LimitFacts:
    """Return the limits that hold for a process started from here."""
    total, free, error, largest = _shm()
    return LimitFacts(
        shm_total=total,
        shm_free=free,
        shm_error=error,
        shm_largest=largest,
        pids_max=read_group_number("pids", "max", "max"),
        pids_now=read_group_number("pids", "current", "current") or 0,
        memory_max=read_group_number("memory", "max", "limit_in_bytes"),
        memory_free=available_memory(),
        cores=len(os.sched_getaffinity(0)),
        cpus=cpu_quota(),
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
