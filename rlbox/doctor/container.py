"""Examine the container that this runs in: quick checks first, then, at once, what needs seconds."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlbox.doctor.checks import FIXES, QUICK_CHECKS, SLOW_CHECKS, CheckContext, CheckThreads, select_checks
from rlbox.doctor.disks import list_run_directories
from rlbox.doctor.fix_checks import let_findings_explain_fix_checks, select_fix_checks
from rlbox.doctor.gpus import DriverRequirements, find_stack_cuda_version
from rlbox.doctor.network import run_ray_start_to_list_ports
from rlbox.doctor.processes import list_processes_in_same_container
from rlbox.doctor.report import Report, merge_and_split_off_explained
from rlbox.doctor.requirements import Requirements, override_gpus, override_run_and_disk_limits, parse_requirements
from rlbox.doctor.stack import (
    StackProbe,
    create_bytecode_dir_removing_others,
    get_install_dir,
    get_venv_beside_install_dir,
)
from rlbox.engine.gpu_access import GPUS_VARIABLE
from rlbox.findings import Finding
from rlbox.record.disk_lock import find_lock_owner
from rlbox.system.gpu import probe_cuda_driver
from rlbox.system.json_files import read_json_object_or_empty

BUDGET_S = 60.0
"""Seconds for an examination, which takes less than ten on an idle machine: on a busy one the limit decides nothing."""


def examine_container(environ: Mapping[str, str], budget_s: float = BUDGET_S) -> Report:
    """Return what is wrong here; at most `budget_s` seconds after the call."""
    start = time.monotonic()
    context = _make_context(environ, start + budget_s)
    quick, slow = CheckThreads(context.monotonic_deadline - 0.3 * budget_s), CheckThreads(context.monotonic_deadline)
    quick.start_thread_per_check(QUICK_CHECKS, context)
    quick.wait_and_collect_until_deadline()
    early = [finding for findings in quick.findings.values() for finding in findings]
    directory = _make_temporary_directory()
    try:
        context = replace(context, stack=_make_stack_probe(context, early, directory))
        slow_checks = select_checks(SLOW_CHECKS, context, early)
        slow.start_thread_per_check(slow_checks, context)
        slow.wait_and_collect_until_deadline()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    late = [finding for name, findings in slow.findings.items() if name != FIXES for finding in findings]
    fix_checks = select_fix_checks(context.manifest, "doctor")
    own = let_findings_explain_fix_checks([*early, *late], fix_checks, context.requirements.data_mount)
    findings, follows = merge_and_split_off_explained(own, slow.findings.get(FIXES, ()))
    return Report(
        findings=findings,
        follows=follows,
        checks=len(QUICK_CHECKS) + len(slow_checks) + len(fix_checks),
        unfinished=(*quick.unfinished_messages, *slow.unfinished_messages, *context.unfinished_messages),
        seconds=time.monotonic() - start,
    )


def _make_context(environ: Mapping[str, str], deadline_s: float) -> CheckContext:
    lock, manifest = (read_json_object_or_empty(path, follow_links=True) for path in _image_files(environ))
    venv = get_venv_beside_install_dir(get_install_dir(environ))
    requirements = parse_requirements(override_run_and_disk_limits(manifest, environ.get("RLBOX_LIMITS", "")), lock)
    requirements = override_gpus(requirements, environ.get(GPUS_VARIABLE, ""))
    driver_requirements = DriverRequirements(
        require_cuda_variable=environ.get("NVIDIA_REQUIRE_CUDA", ""),
        torch_cuda=find_stack_cuda_version(requirements.packages),
        has_compat_libraries=bool(glob.glob("/usr/local/cuda*/compat/libcuda.so.1")),
    )
    return CheckContext(
        environ=environ,
        requirements=requirements,
        monotonic_deadline=deadline_s,
        dotenv_dirs=tuple(dict.fromkeys((os.getcwd(), requirements.data_mount, environ.get("HOME", "/")))),
        directories_to_check=list_run_directories(environ, requirements.data_mount),
        get_driver_requirements=lambda: driver_requirements,
        get_required_ports=partial(_list_required_ports, requirements, venv),
        manifest=manifest,
        driver=probe_cuda_driver(),
        venv=venv,
    )


def _image_files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    install_dir = get_install_dir(environ)
    return Path(install_dir, "share/lock.json"), Path(install_dir, "share/fixes.json")


def _make_temporary_directory() -> str:
    """Return a new directory for what checks write; empty where none can be made."""
    try:
        return tempfile.mkdtemp(prefix="rlbox-doctor-")
    except OSError:
        return ""


def _make_stack_probe(context: CheckContext, early: Sequence[Finding], directory: str) -> StackProbe:
    bytecode = ""
    if not any(finding.id.startswith("data-disk") for finding in early):
        lock, __ = _image_files(context.environ)
        bytecode = create_bytecode_dir_removing_others(context.environ, context.requirements.data_mount, lock)
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    return StackProbe(context.environ, f"{context.venv}/bin/python", directory, token, bytecode)


def _list_required_ports(requirements: Requirements, venv: str) -> Mapping[str, int]:
    """Return the ports of jobs and of Ray's head; none while a run goes on here, or on the data disk."""
    if any(process.is_in_live_run for process in list_processes_in_same_container(venv)) or find_lock_owner(
        Path(requirements.data_mount).resolve()
    ):
        return {}
    return {**(run_ray_start_to_list_ports() if requirements.has_package("ray") else {}), **requirements.ports}
