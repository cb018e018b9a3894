"""The checks of `rlbox doctor`: three tables, and the threads that they run in."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from rlbox.amounts import duration_text
from rlbox.doctor.disks import RunDirectory, check_directories_by_writing, check_host_data_by_writing
from rlbox.doctor.engine import check_engine
from rlbox.doctor.environment import check_environment, check_tokens_and_dotenv_files
from rlbox.doctor.fix_checks import run_fix_checks
from rlbox.doctor.gpus import (
    DriverRequirements,
    check_all_reduce,
    check_cuda_nvml_gpu_memory,
    check_driver,
    check_torch_and_triton_kernels,
    probe_cuda_and_nvml,
)
from rlbox.doctor.limits import check_limits, probe_limits
from rlbox.doctor.network import Endpoint, check_network
from rlbox.doctor.packages import check_packages
from rlbox.doctor.paths import check_search_paths
from rlbox.doctor.processes import check_live_runs_and_leftovers, list_processes_in_same_container
from rlbox.doctor.report import is_explained
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.sandbox import check_sandbox
from rlbox.doctor.stack import ProgramFacts, StackProbe, check_linker, check_ray_task, check_torch_and_extensions
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.gpu import GpuDriver, probe_cuda_driver
from rlbox.values import VENV

_SPARE_S = 0.2  # before the deadline, for ending what a check started
FIXES = "fixes"
"""Name of the check whose findings may mean the same as another's."""


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """What checks may know; a function among it is called in the thread of the check that needs its answer.

    `monotonic_deadline` is monotonic. `dotenv_dirs` may hold a `.env`; `directories_to_check` are those that a run
    writes to (None: they are not checked); `get_required_ports` maps names of ports to those that must be free; `venv`
    is the stack's own. What follows it is known in a container alone: elsewhere there is no stack to start.
    """

    environ: Mapping[str, str]
    requirements: Requirements
    monotonic_deadline: float
    dotenv_dirs: tuple[str, ...]
    directories_to_check: Sequence[RunDirectory] | None
    get_driver_requirements: Callable[[], DriverRequirements]
    get_required_ports: Callable[[], Mapping[str, int]]
    list_mirrors: Callable[[], Sequence[Endpoint]] = tuple
    venv: str = VENV
    stack: StackProbe = field(default_factory=lambda: StackProbe({}, "", "", ""))
    manifest: Mapping[str, Any] = field(default_factory=dict)
    driver: GpuDriver = field(default_factory=GpuDriver)
    unfinished_messages: list[str] = field(default_factory=list)

    @property
    def remaining_s(self) -> float:
        return self.monotonic_deadline - time.monotonic() - _SPARE_S

    @property
    def _has_gpus(self) -> bool:
        return self.driver.is_present and not self.driver.error

    def _can_start(self, package: str) -> bool:
        """Whether programs of the stack can be started, and it has `package`."""
        return self.stack.has_scratch_dir and self.requirements.has_package(package)

    def _note_unfinished(self, facts: ProgramFacts, step: str, check: str) -> None:
        """Note a program that was ended before `step`, which is no finding: the machine may be busy."""
        if facts.exit_code is None and all(row["step"] != step for row in facts.steps):
            text = _("{name}: no answer in {seconds}")
            self.unfinished_messages.append(text.format(name=check, seconds=duration_text(facts.seconds)))


class Check(NamedTuple):
    """One row of a table. Where an earlier finding explains `skip_if_finding_explained`, the check is not run."""

    name: str
    run: Callable[[CheckContext], Iterable[Finding]]
    applies: Callable[[CheckContext], bool] = lambda context: True
    skip_if_finding_explained: str | None = None


def _check_ray(context: CheckContext) -> Iterable[Finding]:
    facts = context.stack.run_cpu_ray_task(context.monotonic_deadline - _SPARE_S)
    context._note_unfinished(facts, "task", "ray task")
    return check_ray_task(facts, context.venv)


def _check_torch(context: CheckContext) -> Iterator[Finding]:
    facts = context.stack.run("probe_torch.py", "extensions", monotonic_deadline=context.monotonic_deadline - _SPARE_S)
    context._note_unfinished(facts, "end", "torch")
    yield from check_torch_and_extensions(facts, context.requirements, context.venv)
    yield from check_torch_and_triton_kernels(facts, context.requirements)


def _check_linker(context: CheckContext) -> Iterable[Finding]:
    requirements = context.requirements
    cuda = requirements.wants_gpu or requirements.has_package("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
    return check_linker(context.stack.probe_linker(requirements, cuda=cuda))


def _check_all_reduce(context: CheckContext) -> Iterable[Finding]:
    count = min(context.driver.device_count, context.requirements.gpus or context.driver.device_count)
    facts = context.stack.run(
        "probe_allreduce.py", str(count), monotonic_deadline=context.monotonic_deadline - _SPARE_S
    )
    context._note_unfinished(facts, "sum", "all-reduce")
    return check_all_reduce(facts, count)


# fmt: off
_NETWORK = Check("network", lambda c: check_network(c.environ, c.get_required_ports(), c.list_mirrors()))
_PROCESSES = Check("processes", lambda c: check_live_runs_and_leftovers(list_processes_in_same_container(c.venv)))
QUICK_CHECKS = (
    Check("limits", lambda c: check_limits(probe_limits(), c.requirements)),
    Check("disks", lambda c: check_directories_by_writing(c.directories_to_check or (), c.requirements)),
    Check("paths", lambda c: check_search_paths(c.environ, c.requirements, c.venv)),
    Check("environment", lambda c: check_environment(c.environ, c.dotenv_dirs, c.requirements)),
    _PROCESSES,
)
"""Run first in a container: what they find may explain what the others would."""
SLOW_CHECKS = (
    Check("sandbox", lambda c: check_sandbox(c.remaining_s)),
    Check("ray task", _check_ray, lambda c: c._can_start("ray"), "ray-task"),
    Check("torch", _check_torch, lambda c: c._can_start("torch"), "torch-op"),
    Check("link", _check_linker, lambda c: c.stack.has_scratch_dir, "jit-link"),
    Check("gpu driver", lambda c: check_driver(c.driver, c.get_driver_requirements(), c.requirements),
        lambda c: c.driver.is_present or c.requirements.wants_gpu),
    Check(
        "gpus",
        lambda c: check_cuda_nvml_gpu_memory(
            probe_cuda_and_nvml(c.stack, c.monotonic_deadline - _SPARE_S), c.requirements
        ),
        lambda c: c._has_gpus),
    Check("all-reduce", _check_all_reduce,
        lambda c: c._has_gpus and c.driver.device_count > 1 and c._can_start("torch")),
    Check("packages", lambda c: check_packages(c.venv, c.requirements)),
    _NETWORK,
    Check(FIXES, lambda c: run_fix_checks("doctor", c.manifest, c.remaining_s, environ=c.environ)),
)
"""Run in a container after the quick ones; those that take longest first."""
HOST_CHECKS = (
    _PROCESSES,
    _NETWORK,
    Check("engine", lambda c: check_engine(c.requirements)),
    Check("driver", lambda c: check_driver(probe_cuda_driver(), c.get_driver_requirements(), c.requirements)),
    Check("tokens", lambda c: check_tokens_and_dotenv_files(c.environ, c.dotenv_dirs, c.requirements)),
    Check("data disk", lambda c: check_host_data_by_writing(c.directories_to_check or (), c.requirements),
        lambda c: c.directories_to_check is not None),
)
# fmt: on


def select_checks(
    checks: Sequence[Check], context: CheckContext, early_findings: Sequence[Finding] = ()
) -> list[Check]:
    applicable = [check for check in checks if check.applies(context)]
    return [
        check
        for check in applicable
        if not (check.skip_if_finding_explained and is_explained(check.skip_if_finding_explained, early_findings))
    ]


@dataclass
class CheckThreads:
    """Checks that run in threads: daemons, since one that hangs in the kernel must not keep rlbox from ending."""

    monotonic_deadline: float
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    unfinished_messages: list[str] = field(default_factory=list)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _results: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def start(self, name: str, run: Callable[[], Iterable[Finding]]) -> None:
        self._threads[name] = threading.Thread(target=self._run, args=(name, run), daemon=True)
        self._threads[name].start()

    def start_thread_per_check(self, checks: Sequence[Check], context: CheckContext) -> None:
        for check in checks:
            self.start(check.name, partial(check.run, context))

    def wait_and_collect_until_deadline(self) -> None:
        """Wait for all that were started, at most until the deadline; what is found later is not told."""
        for name, thread in self._threads.items():
            thread.join(max(self.monotonic_deadline - time.monotonic(), 0.01))
            if name in self._results:
                self.findings[name] = self._results[name]
            elif not any(text.startswith(f"{name}:") for text in self.unfinished_messages):
                self.unfinished_messages.append(_("{name}: not done in time").format(name=name))

    def is_running(self, name: str) -> bool:
        """Tell whether what was started has not ended; threading forgets it where Ctrl-C cuts a `join`."""
        return name in self._threads and name not in self._ended

    def _run(self, name: str, run: Callable[[], Iterable[Finding]]) -> None:
        try:
            self._results[name] = tuple(run())
        except Exception as error:  # a check that fails says nothing of the machine, and must not hide the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.unfinished_messages.append(f"{name}: {type(error).__name__}: {error} ({where.name})")
        finally:
            self._ended.add(name)
