"""Examine the container that this runs in: quick looks first, then, at once, what needs seconds."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rlbox.doctor.checks import FIXES, CheckContext, CheckFamily, select_families
from rlbox.doctor.disks import find_directories
from rlbox.doctor.fix_checks import add_explained_fix_checks, select_fix_checks
from rlbox.doctor.gpus import DriverRequirements, find_stack_cuda_version
from rlbox.doctor.network import read_ray_ports
from rlbox.doctor.processes import list_processes
from rlbox.doctor.report import Report, resolve_findings
from rlbox.doctor.requirements import Requirements, override_gpus, override_limits, parse_requirements
from rlbox.doctor.stack import StackProbe, check_image_files, get_install_dir, get_venv_dir, make_bytecode_directory
from rlbox.engine.gpu_access import GPUS_VARIABLE
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.record.disk_lock import find_lock_owner
from rlbox.system.gpu import probe_cuda_driver
from rlbox.system.json_files import read_json_object

BUDGET_S = 9.0  # of the ten seconds; the rest is for starting Python and for ending what runs


def examine_container(environ: Mapping[str, str], budget_s: float = BUDGET_S) -> Report:
    """Return what is wrong here; at most `budget_s` seconds after the call."""
    start = time.monotonic()
    context = _make_context(environ, start + budget_s)
    quick, slow = ProbeThreads(context.deadline_s - 3), ProbeThreads(context.deadline_s)
    quick_families = [family for family in select_families("container", context) if not family.is_slow]
    quick.start(_probes(quick_families, context))
    quick.wait()
    early = [finding for findings in quick.findings.values() for finding in findings]
    with _temporary_directory() as directory:
        context = replace(context, stack=_stack_probe(context, early, directory))
        slow_families = [family for family in select_families("container", context, early) if family.is_slow]
        slow.start(_probes(slow_families, context))
        slow.wait()
    late = [finding for name, findings in slow.findings.items() if name != FIXES for finding in findings]
    missing = [str(path) for path in _image_files(environ) if not path.is_file()]
    own = add_explained_fix_checks(
        [*early, *late, *check_image_files(missing)],
        select_fix_checks(context.manifest, "doctor"),
        context.requirements.data_mount,
    )
    findings, follows = resolve_findings(own, slow.findings.get(FIXES, ()))
    return Report(
        findings=findings,
        follows=follows,
        checks=sum(family.count_checks(context) for family in (*quick_families, *slow_families)),
        unfinished=(*quick.unfinished, *slow.unfinished, *context.unfinished),
        seconds=time.monotonic() - start,
    )


def _probes(families: Sequence[CheckFamily], context: CheckContext) -> dict[str, Probe]:
    return {family.name: partial(family.probe_and_check, context) for family in families}


def _make_context(environ: Mapping[str, str], end: float) -> CheckContext:
    lock, manifest = (read_json_object(path, follow_links=True) for path in _image_files(environ))
    venv = get_venv_dir(get_install_dir(environ))
    requirements = parse_requirements(override_limits(manifest, environ.get("RLBOX_LIMITS", "")), lock)
    requirements = override_gpus(requirements, environ.get(GPUS_VARIABLE, ""))
    return CheckContext(
        environ=environ,
        requirements=requirements,
        deadline_s=end,
        env_file_dirs=tuple(dict.fromkeys((os.getcwd(), requirements.data_mount, environ.get("HOME", "/")))),
        directories=find_directories(environ, requirements.data_mount),
        get_driver_requirements=partial(_needs, environ, requirements),
        get_required_ports=partial(_free_ports, requirements, venv),
        manifest=manifest,
        driver=probe_cuda_driver(),
        venv=venv,
    )


def _image_files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    own = get_install_dir(environ)
    return Path(own, "share/lock.json"), Path(own, "share/fixes.json")


def _stack_probe(context: CheckContext, early: Sequence[Finding], directory: str) -> StackProbe:
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    no_disk = any(finding.id.startswith("data-disk") for finding in early)
    bytecode = (
        ""
        if no_disk
        else make_bytecode_directory(context.environ, context.requirements.data_mount, _image_files(context.environ)[0])
    )
    return StackProbe(context.environ, f"{context.venv}/bin/python", directory, token, bytecode)


def _needs(environ: Mapping[str, str], requirements: Requirements) -> DriverRequirements:
    require = environ.get("NVIDIA_REQUIRE_CUDA", "")
    compat = bool(glob.glob("/usr/local/cuda*/compat/libcuda.so.1"))
    return DriverRequirements(
        require_cuda_variable=require,
        torch_cuda=find_stack_cuda_version(requirements.packages),
        has_compat_libraries=compat,
    )


def _free_ports(requirements: Requirements, venv: str) -> Mapping[str, int]:
    """Return the ports of jobs and of Ray's head; none while a run goes on here, or on the data disk."""
    if any(process.is_in_live_run for process in list_processes(venv)) or find_lock_owner(
        Path(requirements.data_mount).resolve()
    ):
        return {}
    return {**(read_ray_ports() if requirements.has_package("ray") else {}), **requirements.ports}


@contextmanager
def _temporary_directory() -> Iterator[str]:
    """Make a folder for what probes write, gone afterwards; empty where none can be made."""
    try:
        path = tempfile.mkdtemp(prefix="rlbox-doctor-")
    except OSError:
        path = ""
    try:
        yield path
    finally:
        if path:
            shutil.rmtree(path, ignore_errors=True)


Probe = Callable[[], Iterable[Finding]]


@dataclass
class ProbeThreads:
    """Probes that run in threads: daemons, since one that hangs in the kernel must not keep rlbox from ending."""

    deadline: float
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _found: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def start(self, probes: Mapping[str, Probe]) -> None:
        for name, probe in probes.items():
            self._threads[name] = threading.Thread(target=self._run, args=(name, probe), daemon=True)
            self._threads[name].start()

    def wait(self) -> None:
        """Wait for all that were started, at most until the deadline; what is found later is not told."""
        for name, thread in self._threads.items():
            thread.join(max(self.deadline - time.monotonic(), 0.01))
            if name in self._found:
                self.findings[name] = self._found[name]
            elif not any(row.startswith(f"{name}:") for row in self.unfinished):
                self.unfinished.append(_("{name}: not done in time").format(name=name))

    def is_running(self, name: str) -> bool:
        """Tell whether a probe that was started has not ended; threading forgets it where Ctrl-C cuts a `join`."""
        return name in self._threads and name not in self._ended

    def _run(self, name: str, probe: Probe) -> None:
        try:
            self._found[name] = tuple(probe())
        except Exception as error:  # a probe that fails says nothing of the machine, and must not hide the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.unfinished.append(f"{name}: {f'{type(error).__name__}: {error} ({where.name})'}")
        finally:
            self._ended.add(name)
