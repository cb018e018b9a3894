"""Examine the container that this runs in: quick checks first, then, at once, what needs seconds."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.checks import Check, CheckThreads
from rlbox.doctor.disks import check_directories_by_writing, list_run_directories
from rlbox.doctor.environment import check_environment_variables, check_venv_programs_libraries_and_cuda_home
from rlbox.doctor.fix_checks import add_fix_check_ids_to_breaks, run_fix_checks_retrying_failed, select_fix_checks
from rlbox.doctor.gpus import (
    DriverRequirements,
    check_cuda_init_nvml_and_gpu_health,
    check_driver,
    check_nccl_all_reduce,
    check_pcie_iommu,
    check_torch_and_triton_kernels,
    find_stack_cuda_version_or_empty,
    probe_cuda_and_nvml,
)
from rlbox.doctor.limits import check_limits, probe_limits
from rlbox.doctor.network import check_network, run_ray_start_to_list_ports_or_empty
from rlbox.doctor.processes import check_live_runs_and_leftovers, list_processes_in_same_container
from rlbox.doctor.report import DoctorReport, is_explained_by_breaks, merge_and_split_off_explained
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import (
    StackProbe,
    check_package_files_and_versions,
    check_ray_task,
    check_torch_and_extensions,
    find_jit_compile_or_link_failures,
    get_rlbox_files_dir,
    load_environ_stack_or_default,
    open_scratch_dir_stack_probe,
    requires_cuda,
)
from rlbox.findings import Finding, join_and_count_rest
from rlbox.foreign import parse_untrusted_json
from rlbox.record.disk_lock import find_lock_owner
from rlbox.sandbox.plan import has_landlock_and_seccomp
from rlbox.system.command import run_command
from rlbox.system.gpu import CudaDriver, probe_cuda_driver
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.values import Command

BUDGET_S = 60.0
"""Seconds for an examination, which takes less than ten on an idle machine: on a busy one the limit decides nothing."""
_SPARE_S = 0.2  # before the deadline, for ending what a check started
_FIXES = "fixes"


def examine_container(environ: Mapping[str, str], budget_s: float = BUDGET_S) -> DoctorReport:
    """Return what is wrong here; at most `budget_s` seconds after the call."""
    start = time.monotonic()
    location = load_environ_stack_or_default(environ)
    manifest = read_json_object_or_empty(Path(get_rlbox_files_dir(environ), "share/fixes.json"), follow_links=True)
    checks = ContainerChecks(
        environ=environ,
        requirements=location.requirements,
        venv=location.python.removesuffix("/bin/python"),
        manifest=manifest,
        driver=probe_cuda_driver(),
        monotonic_deadline=start + budget_s,
    )
    quick_checks = checks.list_quick_checks()
    quick = CheckThreads(quick_checks, checks.monotonic_deadline - 0.3 * budget_s)
    early = [finding for findings in quick.wait_and_get_findings_so_far().values() for finding in findings]
    with contextlib.ExitStack() as exit_stack:
        probe = None
        with contextlib.suppress(OSError):  # no directory can be made for what the stack's programs write
            probe = exit_stack.enter_context(open_scratch_dir_stack_probe(location, environ))
        slow_checks = checks.list_slow_checks(early, probe)
        slow = CheckThreads(slow_checks, checks.monotonic_deadline)
        late = slow.wait_and_get_findings_so_far()
    failed_fix_checks = late.pop(_FIXES)
    fix_checks = select_fix_checks(manifest, "doctor")
    own = [*early, *(finding for findings in late.values() for finding in findings)]
    own = add_fix_check_ids_to_breaks(own, fix_checks, checks.requirements.data_mount)
    findings, follows = merge_and_split_off_explained(own, failed_fix_checks)
    return DoctorReport(
        findings=findings,
        follows=follows,
        checks=len(quick_checks) + len(slow_checks) + len(fix_checks),
        unfinished=(*quick.describe_unfinished_or_failed(), *slow.describe_unfinished_or_failed()),
        seconds=time.monotonic() - start,
    )


@dataclass(frozen=True, kw_only=True)
class ContainerChecks:
    """The checks of a container, by name, and what they are judged by; `manifest` is the image's."""

    environ: Mapping[str, str]
    requirements: Requirements
    venv: str
    manifest: Mapping[str, Any]
    driver: CudaDriver
    monotonic_deadline: float

    def list_quick_checks(self) -> dict[str, Check]:
        """Return those that run first: what they find may explain what the others would."""
        environ, requirements = self.environ, self.requirements
        directories = list_run_directories(environ, requirements.data_mount)
        dotenv_dirs = tuple(dict.fromkeys((os.getcwd(), requirements.data_mount, environ.get("HOME", "/"))))
        return {
            "limits": lambda: check_limits(probe_limits(), requirements),
            "disks": lambda: check_directories_by_writing(directories, requirements),
            "paths": lambda: check_venv_programs_libraries_and_cuda_home(environ, requirements, self.venv),
            "environment": lambda: check_environment_variables(environ, dotenv_dirs, requirements),
            "processes": lambda: check_live_runs_and_leftovers(list_processes_in_same_container(self.venv)),
        }

    def list_slow_checks(self, early: Sequence[Finding], stack: StackProbe | None) -> dict[str, Check]:
        """Return those that run after the quick ones, without what `early` findings explain or nothing here can start.

        Those that take longest come first.
        """
        requirements, has_gpus = self.requirements, self.driver.is_present and not self.driver.error
        checks: dict[str, Check] = {"sandbox": lambda: _check_sandbox(self._remaining_s)}
        if stack and requirements.has_any_package("ray") and not is_explained_by_breaks("ray-task", early):
            checks["ray task"] = partial(self._check_ray, stack)
        if stack and requirements.has_any_package("torch") and not is_explained_by_breaks("torch-op", early):
            checks["torch"] = partial(self._check_torch, stack)
        if stack and not is_explained_by_breaks("jit-link", early):
            libraries: tuple[Literal["cudart", "cuda"], ...] = ("cudart", "cuda") if requires_cuda(requirements) else ()
            checks["link"] = partial(find_jit_compile_or_link_failures, stack, requirements, libraries)
        if self.driver.is_present or requirements.wants_gpu:
            checks["gpu driver"] = lambda: check_driver(self.driver, self._get_driver_requirements(), requirements)
        if stack and has_gpus:
            checks["gpus"] = lambda: check_cuda_init_nvml_and_gpu_health(
                probe_cuda_and_nvml(stack, self._program_deadline), requirements
            )
        if has_gpus and self.driver.device_file_count > 1:
            checks["gpu peers"] = lambda: check_pcie_iommu(self.environ)
        if stack and has_gpus and self.driver.device_file_count > 1 and requirements.has_any_package("torch"):
            checks["all-reduce"] = partial(self._check_all_reduce, stack)
        return checks | {
            "packages": lambda: check_package_files_and_versions(self.venv, requirements),
            "network": lambda: check_network(self.environ, self._list_required_ports()),
            _FIXES: lambda: run_fix_checks_retrying_failed(
                "doctor", self.manifest, self._remaining_s, environ=self.environ
            ),
        }

    @property
    def _program_deadline(self) -> float:
        return self.monotonic_deadline - _SPARE_S

    @property
    def _remaining_s(self) -> float:
        return self._program_deadline - time.monotonic()

    def _check_ray(self, stack: StackProbe) -> Iterator[Finding]:
        facts = stack.run_cpu_ray_task(self._program_deadline)
        yield from check_ray_task(facts, self.venv)
        facts.raise_if_timed_out_before("task")

    def _check_torch(self, stack: StackProbe) -> Iterator[Finding]:
        facts = stack.run("probe_torch.py", "extensions", monotonic_deadline=self._program_deadline)
        yield from check_torch_and_extensions(facts, self.requirements, self.venv)
        yield from check_torch_and_triton_kernels(facts, self.requirements)
        facts.raise_if_timed_out_before("end")

    def _check_all_reduce(self, stack: StackProbe) -> Iterator[Finding]:
        count = min(self.driver.device_file_count, self.requirements.gpus or self.driver.device_file_count)
        facts = stack.run("probe_allreduce.py", str(count), monotonic_deadline=self._program_deadline)
        yield from check_nccl_all_reduce(facts, count)
        facts.raise_if_timed_out_before("sum")

    def _get_driver_requirements(self) -> DriverRequirements:
        return DriverRequirements(
            require_cuda_variable=self.environ.get("NVIDIA_REQUIRE_CUDA", ""),
            torch_cuda=find_stack_cuda_version_or_empty(self.requirements.packages),
            has_compat_libraries=bool(glob.glob("/usr/local/cuda*/compat/libcuda.so.1")),
        )

    def _list_required_ports(self) -> Mapping[str, int]:
        """Return the ports of jobs and of Ray's head; none while a run goes on here, or on the data disk."""
        if any(process.is_in_live_run for process in list_processes_in_same_container(self.venv)):
            return {}
        if find_lock_owner(Path(self.requirements.data_mount).resolve()):
            return {}
        ray_ports = run_ray_start_to_list_ports_or_empty() if self.requirements.has_any_package("ray") else {}
        return {**ray_ports, **self.requirements.ports}


def _check_sandbox(timeout_s: float) -> Iterator[Finding]:
    argv = (sys.executable, "-m", "rlbox.sandbox", "probe")
    answer = parse_untrusted_json(run_command(Command(argv=argv, timeout_s=timeout_s, cwd="/")).stdout)
    reasons = [f"{layer}: {reason}" for layer, reason in sorted(answer["missing"].items())]
    if not has_landlock_and_seccomp(answer["layers"]):
        yield make_finding("sandbox-weak", level="warning", seen=join_and_count_rest(reasons) or answer["strength"])
