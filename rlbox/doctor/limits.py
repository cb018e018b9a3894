"""Limits of the container: shared memory, processes, memory, rlimits."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rlbox.amounts import GIB, MIB, decimal_and_gib_size_text, decimal_size_text
from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.limits import get_available_memory_bytes, read_cgroup_number_unless_unlimited

SHM = "/dev/shm"  # noqa: S108 - it is what is asked about
UNLIMITED = -1
_SHM_FLOOR_GIB = 1.0  # NCCL and data loaders of one job; source: NCCL user guide, troubleshooting, shared memory
_PIDS_FLOOR = 512  # a Ray of one worker has some 200 threads, an engine beside it as many (measured on Ray 2.60)
_PIDS_PER_CORE = 16  # source: vast-ai/base-image, ADR 0014
_MEMORY_FLOOR = 2 * GIB  # torch and one Ray worker
# rlimit, floor under which a job fails, unit, what fails of it
_RLIMITS = (
    ("nofile", 4096, 1, _("open files"), _("Ray, data loaders and sockets run out of files")),
    ("fsize", GIB, MIB, "MiB a file", _("a checkpoint is cut off")),
    ("as", 64 * GIB, MIB, _("MiB of addresses"), _("torch and CUDA reserve far more than they use")),
    ("data", 8 * GIB, MIB, _("MiB of data"), _("torch cannot load a model")),
    ("stack", MIB, 1 << 10, _("KiB of stack"), _("compiled kernels crash")),
    ("cpu", 7 * 86400, 1, _("seconds of CPU"), _("the kernel ends the job")),
)
_RECOMMENDED_RLIMITS = {"nofile": 65536}


@dataclass(frozen=True, kw_only=True)
class LimitFacts:
    """Limits as the kernel tells them; sizes in bytes, None where there is none, `UNLIMITED` in rlimits."""

    shm_total: int | None
    shm_free: int = 0
    pids_max: int | None = None
    pids_now: int = 0
    memory_max: int | None = None
    memory_free: int | None = None
    cores: int = 1
    rlimits: Mapping[str, int] = field(default_factory=dict)


def check_limits(facts: LimitFacts, requirements: Requirements) -> Iterator[Finding]:
    yield from _check_shm(facts, requirements)
    yield from _check_pids(facts, requirements)
    yield from _check_memory(facts, requirements)
    for name, floor, unit, what, fails in _RLIMITS:
        limit = facts.rlimits.get(name, UNLIMITED)
        if limit != UNLIMITED and limit < floor:
            yield make_finding(
                "ulimit", id=f"ulimit-{name}", level="warning" if name == "nofile" and limit >= 1024 else "error",
                name=name, fails=fails, what=what, limit=limit // unit, floor=floor // unit,
                recommended=_RECOMMENDED_RLIMITS.get(name, floor),
                covers=("soft-limits",) if name == "nofile" else (),
            )  # fmt: skip


def _check_shm(facts: LimitFacts, requirements: Requirements) -> Iterator[Finding]:
    wanted, total, free = requirements.shm_gib or _SHM_FLOOR_GIB, facts.shm_total, facts.shm_free
    if total is None:
        yield make_finding("shm-missing", shm=SHM, shm_wanted=wanted)
    elif total < 0.9 * wanted * GIB:
        yield make_finding(
            "shm-too-small", level="error" if total < 0.9 * min(wanted, _SHM_FLOOR_GIB) * GIB else "warning",
            shm_total=decimal_size_text(total), asked_text=decimal_and_gib_size_text(wanted), shm_wanted=wanted,
        )  # fmt: skip
    elif free < min(0.25 * total, 0.5 * wanted * GIB):
        yield make_finding(
            "shm-full", level="error" if free < 128 * MIB else "warning",
            shm_free=decimal_size_text(free), total=decimal_size_text(total),
        )  # fmt: skip


def _check_pids(facts: LimitFacts, requirements: Requirements) -> Iterator[Finding]:
    limits = [limit for limit in (facts.pids_max, facts.rlimits.get("nproc")) if limit not in (None, UNLIMITED)]
    if not limits:
        return
    limit = min(number for number in limits if number is not None)
    tight = limit < max(_PIDS_FLOOR, facts.pids_now + _PIDS_FLOOR // 2)
    known = requirements.pid_limit and limit >= requirements.pid_limit
    wanted = min(requirements.pids or _PIDS_PER_CORE * facts.cores, _PIDS_PER_CORE * max(facts.cores, _PIDS_FLOOR))
    if tight or not (known or limit >= 0.9 * wanted):
        yield make_finding(
            "pids-limit", level="error" if tight else "warning",
            where="pids.max" if limit == facts.pids_max else "ulimit -u",
            limit=limit, pids_now=facts.pids_now, cores=facts.cores, wanted=max(wanted, _PIDS_FLOOR),
            recommended=max(wanted, 4096), breaks=None if tight else (),
        )  # fmt: skip


def _check_memory(facts: LimitFacts, requirements: Requirements) -> Iterator[Finding]:
    wanted = max(requirements.memory_gib * GIB, _MEMORY_FLOOR)
    if facts.memory_max is not None and facts.memory_max < max(0.9 * requirements.memory_gib * GIB, _MEMORY_FLOOR):
        yield make_finding(
            "memory-limit", level="error" if facts.memory_max < _MEMORY_FLOOR else "warning",
            memory_max=decimal_size_text(facts.memory_max), size=decimal_size_text(wanted),
            memory_gib=max(requirements.memory_gib, 4),
        )  # fmt: skip
    elif facts.memory_free is not None and facts.memory_free < _MEMORY_FLOOR // 2:
        yield make_finding("memory-low", memory_free=decimal_size_text(facts.memory_free))


def probe_limits() -> LimitFacts:
    shm = os.statvfs(SHM) if os.path.isdir(SHM) else None
    return LimitFacts(
        shm_total=shm.f_blocks * shm.f_frsize if shm else None,
        shm_free=shm.f_bavail * shm.f_frsize if shm else 0,
        pids_max=read_cgroup_number_unless_unlimited("pids", "max", "max"),
        pids_now=read_cgroup_number_unless_unlimited("pids", "current", "current") or 0,
        memory_max=read_cgroup_number_unless_unlimited("memory", "max", "limit_in_bytes"),
        memory_free=get_available_memory_bytes(),
        cores=len(os.sched_getaffinity(0)),
        rlimits={name: _probe_rlimit(name) for name in (*(row[0] for row in _RLIMITS), "nproc")},
    )


def _probe_rlimit(name: str) -> int:
    """Return the limit that holds; of open files the hard one, for Ray and Python servers raise it themselves."""
    soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    limit = hard if name == "nofile" else soft
    if name == "nproc" and os.getuid() == 0:  # the kernel does not hold root to it
        return UNLIMITED
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit
