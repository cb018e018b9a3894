"""Limits of the container: shared memory, processes, memory, rlimits."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rlbox.amounts import GIB, MIB, decimal_and_gib_size_text, decimal_size_text
from rlbox.doctor.packages import STACK_PROGRAM_FINDINGS
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding, Level
from rlbox.i18n import _
from rlbox.system.limits import get_available_memory, read_cgroup_number

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


class ShmFile(NamedTuple):
    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class LimitFacts:
    """Limits as the kernel tells them; sizes in bytes, None where there is none, `UNLIMITED` in rlimits.

    `shm_largest` are the biggest files of shared memory.
    """

    shm_total: int | None
    shm_free: int = 0
    shm_largest: tuple[ShmFile, ...] = ()
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
    yield from _check_rlimits(facts)


def _check_shm(facts: LimitFacts, requirements: Requirements) -> Iterator[Finding]:
    wanted, total = requirements.shm_gib or _SHM_FLOOR_GIB, facts.shm_total
    level: Level = "error"
    remedy = _("start the container with --shm-size={shm_wanted:g}g (rlbox does), or --ipc=host").format(
        shm_wanted=wanted
    )
    if total is None:
        name, title, seen = "shm-missing", _("there is no shared memory"), _("{shm} is not a directory").format(shm=SHM)
    elif total < 0.9 * wanted * GIB:
        name, title = "shm-too-small", _("shared memory is too small")
        seen = _("{shm_total}, the target wants {asked_text}").format(
            shm_total=decimal_size_text(total), asked_text=decimal_and_gib_size_text(wanted)
        )
        level = "error" if total < 0.9 * min(wanted, _SHM_FLOOR_GIB) * GIB else "warning"
    elif facts.shm_free < min(0.25 * total, 0.5 * wanted * GIB):
        name, title = "shm-full", _("shared memory is nearly full")
        seen = _("{shm_free} free of {total}; largest: {files}").format(
            shm_free=decimal_size_text(facts.shm_free), total=decimal_size_text(total),
            files=", ".join(f"{path} {decimal_size_text(count)}" for path, count in facts.shm_largest),
        )  # fmt: skip
        level = "error" if facts.shm_free < 128 * MIB else "warning"
        remedy = _("remove what ended jobs left there, or end the job that uses it")
    else:
        return
    yield Finding(
        id=name, title=title, level=level, seen=seen, where=SHM, remedy=remedy,
        breaks=("ray-*", "torch-*", "gpu-*", "nccl-*"), covers=("shm-too-small", "ray-object-store"),
    )  # fmt: skip


def _check_pids(facts: LimitFacts, requirements: Requirements) -> Iterator[Finding]:
    limits = [limit for limit in (facts.pids_max, facts.rlimits.get("nproc")) if limit not in (None, UNLIMITED)]
    if not limits:
        return
    limit = min(number for number in limits if number is not None)
    tight = limit < max(_PIDS_FLOOR, facts.pids_now + _PIDS_FLOOR // 2)
    known = requirements.pid_limit and limit >= requirements.pid_limit
    wanted = min(requirements.pids or _PIDS_PER_CORE * facts.cores, _PIDS_PER_CORE * max(facts.cores, _PIDS_FLOOR))
    if not tight and (known or limit >= 0.9 * wanted):
        return
    yield Finding(
        id="pids-limit", title=_("too few processes and threads are allowed"), level="error" if tight else "warning",
        seen=_("limit {limit}, {pids_now} in use, {cores} cores; wanted: {wanted}").format
            (limit=limit, pids_now=facts.pids_now, cores=facts.cores, wanted=max(wanted, _PIDS_FLOOR)),
        where="pids.max" if limit == facts.pids_max else "ulimit -u",
        remedy=_("start the container with --pids-limit={wanted} (rlbox does), or set *_NUM_THREADS=1").format
            (wanted=max(wanted, 4096)),
        breaks=(*STACK_PROGRAM_FINDINGS, "torch-ext-*", "libnuma-missing") if tight else (),
        covers=("pthread-create-failed",),
    )  # fmt: skip


def _check_memory(facts: LimitFacts, requirements: Requirements) -> Iterator[Finding]:
    breaks = ("ray-*", "torch-*", "extension-*")
    wanted = requirements.memory_gib * GIB
    if facts.memory_max is not None and facts.memory_max < max(0.9 * wanted, _MEMORY_FLOOR):
        yield Finding(
            id="memory-limit", title=_("the memory limit is too low"),
            level="error" if facts.memory_max < _MEMORY_FLOOR else "warning",
            seen=_("{memory_max}, the target wants {size}").format
                (memory_max=decimal_size_text(facts.memory_max), size=decimal_size_text(max(wanted, _MEMORY_FLOOR))),
            where="memory.max",
            remedy=_("start the container with --memory={memory_gib:g}g").format
                (memory_gib=max(requirements.memory_gib, 4)),
            breaks=breaks, covers=("host-oom-killed",),
        )  # fmt: skip
    elif facts.memory_free is not None and facts.memory_free < _MEMORY_FLOOR // 2:
        yield Finding(
            id="memory-low", title=_("hardly any memory is free"),
            seen=_("{memory_free} free").format(memory_free=decimal_size_text(facts.memory_free)),
            where=_("memory"), remedy=_("end what uses it (`ps aux --sort=-rss | head`)"), breaks=breaks,
        )  # fmt: skip


def _check_rlimits(facts: LimitFacts) -> Iterator[Finding]:
    for name, floor, unit, what, fails in _RLIMITS:
        limit = facts.rlimits.get(name, UNLIMITED)
        if limit != UNLIMITED and limit < floor:
            yield Finding(
                id=f"ulimit-{name}", title=_("a limit of the shell is too low: {fails}").format(fails=fails),
                level="warning" if name == "nofile" and limit >= 1024 else "error",
                seen=_("{limit} {what}, {floor} are the least").format
                    (limit=limit // unit, what=what, floor=floor // unit),
                where=_("ulimit, {name}").format(name=name),
                remedy=_(
                    "start the container with --ulimit {name}={limit}, or raise it in /etc/security/limits.conf"
                ).format(name=name, limit=_RECOMMENDED_RLIMITS.get(name, floor)),
                breaks=("ray-*", "torch-*", "extension-*", "jit-*"),
                covers=("soft-limits",) if name == "nofile" else (),
            )  # fmt: skip


def probe_limits() -> LimitFacts:
    shm = os.statvfs(SHM) if os.path.isdir(SHM) else None
    return LimitFacts(
        shm_total=shm.f_blocks * shm.f_frsize if shm else None,
        shm_free=shm.f_bavail * shm.f_frsize if shm else 0,
        shm_largest=_find_largest_shm_files(),
        pids_max=read_cgroup_number("pids", "max", "max"),
        pids_now=read_cgroup_number("pids", "current", "current") or 0,
        memory_max=read_cgroup_number("memory", "max", "limit_in_bytes"),
        memory_free=get_available_memory(),
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


def _find_largest_shm_files() -> tuple[ShmFile, ...]:
    files = []
    for folder, __, names in os.walk(SHM):
        for name in names:
            try:
                path = os.path.join(folder, name)
                files.append(ShmFile(path, os.lstat(path).st_blocks * 512))
            except OSError:
                continue
    return tuple(sorted(files, key=lambda file: -file.bytes)[:3])
