"""The families of doctor's checks: a row each, with the judge that counts them and what it is asked about."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from rlbox.amounts import duration_text
from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.disks import RunDirectory, check_data_disk, check_directories, check_directory, probe_directories
from rlbox.doctor.engine import check_engine, probe_engine
from rlbox.doctor.environment import check_environment, check_tokens, probe_environment
from rlbox.doctor.fix_checks import check_fix, run_fix_checks, select_fix_checks
from rlbox.doctor.gpus import (
    DriverRequirements,
    check_all_reduce,
    check_driver,
    check_gpu_kernels,
    check_gpus,
    probe_gpus,
)
from rlbox.doctor.limits import check_limits, probe_limits
from rlbox.doctor.network import Endpoint, check_network, probe_network
from rlbox.doctor.packages import check_packages, get_site_packages_path, probe_packages
from rlbox.doctor.paths import check_paths, probe_paths
from rlbox.doctor.processes import check_processes, list_processes
from rlbox.doctor.report import is_explained
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.sandbox import check_sandbox, probe_sandbox
from rlbox.doctor.stack import ProgramFacts, StackProbe, check_linker, check_ray, check_torch, ran_out_of_time
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.gpu import GpuDriver, probe_cuda_driver
from rlbox.values import VENV

CheckScope = Literal["container", "host", "both"]
_SPARE_S = 0.2  # before the end, for ending what a probe started


@dataclass(frozen=True, kw_only=True)
class CheckFamily:
    """Checks of the same facts.

    `probe_and_check` probes and checks, in a thread of its own; in a container the slow families run after the results
    of all others are known. `count_subjects` says to how many things each check is applied. `main_finding_id` is an id
    of the family's own findings: where an earlier finding explains that one, the family does not run.
    """

    name: str
    scope: CheckScope
    group: CheckGroup[Any]
    probe_and_check: Callable[[CheckContext], Iterable[Finding]]
    is_slow: bool = False
    applies: Callable[[CheckContext], bool] = lambda context: True
    count_subjects: Callable[[CheckContext], int] = lambda context: 1
    main_finding_id: str = ""

    def count_checks(self, context: CheckContext) -> int:
        """Return how many checks it is; of torch that is known only once the extensions are."""
        return len(self.group) * self.count_subjects(context)


def select_families(
    where: CheckScope, context: CheckContext, early_findings: Sequence[Finding] = ()
) -> list[CheckFamily]:
    families = [family for family in CHECKS if family.scope in (where, "both") and family.applies(context)]
    return [
        family
        for family in families
        if not (family.main_finding_id and is_explained(family.main_finding_id, early_findings))
    ]


def _network(context: CheckContext) -> list[Finding]:
    asked = replace(context.requirements, ports=context.get_required_ports())
    return check_network(probe_network(context.environ, asked, context.list_mirrors()), context.requirements)


def _ray(context: CheckContext) -> list[Finding]:
    facts = context.stack.probe_ray(context.deadline_s - _SPARE_S)
    context.note_unfinished(facts, "task", "ray task")
    return check_ray(facts, context.requirements, context.venv)


def _torch(context: CheckContext) -> Iterator[Finding]:
    facts = context.stack.probe_torch(
        lambda: context.wait_for_extensions(context.deadline_s - 2 - time.monotonic()), context.deadline_s - _SPARE_S
    )
    context.note_unfinished(facts, "end", "torch")
    return chain(check_torch(facts, context.requirements, context.venv), check_gpu_kernels(facts, context.requirements))


def _link(context: CheckContext) -> list[Finding]:
    requirements = context.requirements
    cuda = requirements.wants_gpu or requirements.has_package("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
    return check_linker(context.stack.probe_linker(requirements, cuda=cuda))


def _all_reduce(context: CheckContext) -> list[Finding]:
    facts = context.stack.probe_all_reduce(context.gpu_count, context.deadline_s - _SPARE_S)
    context.note_unfinished(facts, "sum", "all-reduce")
    return check_all_reduce(facts, context.gpu_count) if facts.exit_code is not None or facts.was_idle else []


def _packages(context: CheckContext) -> list[Finding]:
    linked: tuple[str, ...] = ()
    try:
        facts = probe_packages(get_site_packages_path(context.requirements.python or "3", context.venv))
        linked = facts.torch_extensions
    finally:
        context.linked_extensions.set_result(linked)
    return check_packages(facts, context.requirements)


def _has_gpus(context: CheckContext) -> bool:
    return context.driver.is_present and not context.driver.error


FIXES = "fixes"
"""Name of the family whose findings may mean the same as another's."""
# fmt: off
CHECKS = (
    CheckFamily(name="limits", scope="container", group=check_limits,
        probe_and_check=lambda c: check_limits(probe_limits(), c.requirements)),
    CheckFamily(name="disks", scope="container", group=check_directory,
        count_subjects=lambda c: len(c.directories or ()),
        probe_and_check=lambda c: check_directories(
            probe_directories(c.directories or ()), c.requirements, c.user_text)),
    CheckFamily(name="paths", scope="container", group=check_paths,
        probe_and_check=lambda c: check_paths(probe_paths(c.environ, c.requirements, c.venv), c.requirements)),
    CheckFamily(name="environment", scope="container", group=check_environment,
        probe_and_check=lambda c: check_environment(probe_environment(c.environ, c.env_file_dirs), c.requirements)),
    CheckFamily(name="processes", scope="both", group=check_processes,
        probe_and_check=lambda c: check_processes(list_processes(c.venv))),
    CheckFamily(name="sandbox", scope="container", group=check_sandbox, is_slow=True,
        probe_and_check=lambda c: check_sandbox(probe_sandbox(c.deadline_s - time.monotonic() - _SPARE_S))),
    CheckFamily(name="ray task", scope="container", group=check_ray, is_slow=True, main_finding_id="ray-task",
        applies=lambda c: c.stack.is_usable and c.requirements.has_package("ray"), probe_and_check=_ray),
    CheckFamily(name="torch", scope="container", group=check_torch, is_slow=True, main_finding_id="torch-op",
        applies=lambda c: c.stack.is_usable and c.requirements.has_package("torch"),
        count_subjects=lambda c: 1 + len(c.wait_for_extensions()), probe_and_check=_torch),
    CheckFamily(name="link", scope="container", group=check_linker, is_slow=True, main_finding_id="jit-link",
        applies=lambda c: c.stack.is_usable, probe_and_check=_link),
    CheckFamily(name="gpu driver", scope="container", group=check_driver, is_slow=True,
        applies=lambda c: c.driver.is_present or c.requirements.wants_gpu,
        probe_and_check=lambda c: check_driver(c.driver, c.get_driver_requirements(), c.requirements)),
    CheckFamily(name="gpus", scope="container", group=check_gpus, is_slow=True, applies=_has_gpus,
        probe_and_check=lambda c: check_gpus(probe_gpus(c.stack, c.deadline_s - _SPARE_S), c.requirements)),
    CheckFamily(name="all-reduce", scope="container", group=check_all_reduce, is_slow=True,
        applies=lambda c: _has_gpus(c) and c.driver.device_count > 1 and c.requirements.has_package("torch"),
        probe_and_check=_all_reduce),
    CheckFamily(name="packages", scope="container", group=check_packages, is_slow=True, probe_and_check=_packages),
    CheckFamily(name="network", scope="both", group=check_network, is_slow=True, probe_and_check=_network),
    CheckFamily(name=FIXES, scope="container", group=check_fix, is_slow=True,
        count_subjects=lambda c: len(select_fix_checks(c.manifest, "doctor")),
        probe_and_check=lambda c: run_fix_checks("doctor", c.manifest, c.deadline_s - time.monotonic() - 0.3,
            environ=c.environ)),
    CheckFamily(name="engine", scope="host", group=check_engine,
        probe_and_check=lambda c: check_engine(probe_engine(), c.requirements)),
    CheckFamily(name="driver", scope="host", group=check_driver,
        probe_and_check=lambda c: check_driver(probe_cuda_driver(), c.get_driver_requirements(), c.requirements)),
    CheckFamily(name="tokens", scope="host", group=check_tokens,
        probe_and_check=lambda c: check_tokens(probe_environment(c.environ, c.env_file_dirs), c.requirements)),
    CheckFamily(name="data disk", scope="host", group=check_data_disk, applies=lambda c: c.directories is not None,
        probe_and_check=lambda c: check_data_disk(probe_directories(c.directories or ()), c.requirements, c.user_text)),
)
# fmt: on
"""Every family, quick ones first; of each kind those that take longest first."""


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """What probes may know; the functions among it are called by the one probe that wants their answer, in its thread.

    `deadline_s` is monotonic. `env_file_dirs` may hold a `.env`; `directories` are role and path of folders that a run
    writes to (None: none is asked about); `get_required_ports` maps names of ports to those that must be free; `venv`
    is the stack's own. What follows `stack` is known in a container alone: elsewhere there is no stack to start.
    """

    environ: Mapping[str, str]
    requirements: Requirements
    deadline_s: float
    env_file_dirs: tuple[str, ...]
    directories: Sequence[RunDirectory] | None
    get_driver_requirements: Callable[[], DriverRequirements]
    get_required_ports: Callable[[], Mapping[str, int]]
    list_mirrors: Callable[[], Sequence[Endpoint]] = tuple
    venv: str = VENV
    stack: StackProbe = field(default_factory=lambda: StackProbe({}, "", "", ""))
    manifest: Mapping[str, Any] = field(default_factory=dict)
    driver: GpuDriver = field(default_factory=GpuDriver)
    linked_extensions: Future[tuple[str, ...]] = field(default_factory=Future)
    unfinished: list[str] = field(default_factory=list)

    @property
    def user_text(self) -> str:
        return _("uid {getuid}").format(getuid=os.getuid())

    @property
    def gpu_count(self) -> int:
        return min(self.driver.device_count, self.requirements.gpus or self.driver.device_count)

    def wait_for_extensions(self, timeout_s: float = 0.0) -> tuple[str, ...]:
        """Return the compiled extensions that torch is to load, once the packages are known; else none."""
        wait([self.linked_extensions], max(timeout_s, 0.0))
        return self.linked_extensions.result() if self.linked_extensions.done() else ()

    def note_unfinished(self, facts: ProgramFacts, step: str, family: str) -> None:
        """Note a program that did not reach `step` because the machine was busy, which is no finding."""
        if ran_out_of_time(facts, step):
            self.unfinished.append(
                _("{name}: the machine was too busy to finish it in {seconds}").format(
                    name=family, seconds=duration_text(facts.seconds)
                )
            )
