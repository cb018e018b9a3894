"""Examine the container that this runs in: quick looks first, then, at once, what needs seconds."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from rlbox.doctor.act.fix_checks import MANIFEST, probe_fixes, read_table
from rlbox.doctor.act.probe.disks import places_of, probe_places
from rlbox.doctor.act.probe.host import probe_driver
from rlbox.doctor.act.probe.limits import probe_limits
from rlbox.doctor.act.probe.network import probe_network, ray_ports
from rlbox.doctor.act.probe.packages import VENV, probe_packages, site_packages
from rlbox.doctor.act.probe.paths import probe_environment, probe_paths
from rlbox.doctor.act.probe.processes import probe_running
from rlbox.doctor.act.probe.stack import StackProbe
from rlbox.doctor.act.stack_place import bytecode_folder
from rlbox.doctor.act.threads import Probe, Probes
from rlbox.doctor.facts import Demands, demands_of, with_gpus, with_limits
from rlbox.doctor.fix_checks import checks_of, with_dependents
from rlbox.doctor.judge.disks import judge_places
from rlbox.doctor.judge.env import judge_environment
from rlbox.doctor.judge.gpu import judge_all_reduce, judge_gpu_kernels, judge_gpus
from rlbox.doctor.judge.host import ImageNeeds, judge_driver, stack_cuda
from rlbox.doctor.judge.limits import judge_limits
from rlbox.doctor.judge.network import judge_network
from rlbox.doctor.judge.packages import PackageFacts, judge_packages
from rlbox.doctor.judge.paths import judge_paths
from rlbox.doctor.judge.processes import judge_processes
from rlbox.doctor.judge.stack import ProgramFacts, judge_link, judge_ray, judge_torch, judge_unlocked, unfinished
from rlbox.doctor.report import Report, is_broken, settle
from rlbox.engine.gpu_access import GPUS_VARIABLE
from rlbox.findings import Finding
from rlbox.values import LOCK_IN_IMAGE

LOCK = Path(LOCK_IN_IMAGE)
BUDGET_S = 9.0  # of the ten seconds; the rest is for starting Python and for ending what runs
_CHECKS = {"limits": 13, "disks": 4, "paths": 9, "environment": 8, "processes": 2, "network": 9, "packages": 4}


def examine_inside(environ: Mapping[str, str], budget_s: float = BUDGET_S) -> Report:
    """Return what is wrong here; at most `budget_s` seconds after the call."""
    began = time.monotonic()
    manifest, lock = read_table(MANIFEST), read_table(LOCK)
    demands = demands_of(with_limits(manifest, environ.get("RLBOX_LIMITS", "")), lock)
    demands = with_gpus(demands, environ.get(GPUS_VARIABLE, ""))
    examination = _Examination(environ, manifest, demands, began + budget_s)
    return examination.report(began)


class _Examination:
    """One examination of one container."""

    def __init__(self, environ: Mapping[str, str], manifest: Mapping[str, Any], demands: Demands, end: float) -> None:
        self._environ, self._manifest, self._demands, self._end = environ, manifest, demands, end
        self._packages = PackageFacts(site=site_packages(demands.python or "3"))
        self._packages_known = threading.Event()
        self._checks = dict(_CHECKS)
        self._late: list[str] = []
        self._driver = probe_driver()

    def report(self, began: float) -> Report:
        quick, slow = Probes(self._end - 3), Probes(self._end)
        quick.start(self._quick())
        quick.wait()
        known = [finding for found in quick.findings.values() for finding in found]
        with _folder() as folder:
            slow.start(self._slow(known, folder))
            slow.wait()
        own = [*known, *(row for name, found in slow.findings.items() if name != "fixes" for row in found)]
        own += judge_unlocked([str(path) for path in (LOCK, MANIFEST) if not path.is_file()])
        own = with_dependents(own, checks_of(self._manifest, "doctor"), self._demands.mount)
        findings, follows = settle(own, slow.findings.get("fixes", ()))
        return Report(
            findings=findings,
            follows=follows,
            checks=sum(self._checks.values()),
            unfinished=(*quick.unfinished, *slow.unfinished, *self._late),
            seconds=time.monotonic() - began,
        )

    def _quick(self) -> dict[str, Probe]:
        environ, demands = self._environ, self._demands
        home = environ.get("HOME", "/")
        folders = tuple(dict.fromkeys((os.getcwd(), demands.mount, home)))
        places = places_of(environ, demands.mount)
        self._checks["disks"] = 2 * len(places)
        return {
            "limits": lambda: judge_limits(probe_limits(), demands),
            "disks": lambda: judge_places(probe_places(places), demands, f"uid {os.getuid()}"),
            "paths": lambda: judge_paths(probe_paths(environ, demands, VENV), demands),
            "environment": lambda: judge_environment(probe_environment(environ, folders), demands),
            "processes": lambda: judge_processes(probe_running(VENV)),
        }

    def _slow(self, known: Sequence[Finding], folder: str) -> dict[str, Probe]:
        token = f"{os.getpid()}-{time.monotonic_ns()}"
        probe = StackProbe(self._environ, f"{VENV}/bin/python", folder, token, self._bytecode(known))
        wanted: dict[str, tuple[str, Callable[[], Iterable[Finding]]]] = {
            "ray task": ("ray-task", lambda: self._ray(probe)),
            "torch": ("torch-op", lambda: self._torch(probe)),
            "link": ("jit-link", lambda: judge_link(probe.link(self._demands, cuda=self._has_cuda()))),
        }
        has = {"ray task": self._demands.has("ray"), "torch": self._demands.has("torch"), "link": True}
        probes: dict[str, Probe] = {}
        for name, (finding, run) in wanted.items():
            if has[name] and folder and not is_broken(finding, known):
                probes[name] = run
                self._checks[name] = 1
        if self._driver.present or self._demands.wants_gpu:
            probes["gpu driver"] = lambda: judge_driver(self._driver, self._needs(), self._demands)
            self._checks["gpu driver"] = 4
        if self._driver.present and not self._driver.error:
            probes["gpus"] = lambda: judge_gpus(probe.gpu(self._end - 0.2), self._demands)
            self._checks["gpus"] = 4
            if self._driver.devices > 1 and self._demands.has("torch"):
                probes["all-reduce"] = lambda: self._all_reduce(probe)
                self._checks["all-reduce"] = 1
        probes["packages"] = self._look_at_packages
        probes["network"] = lambda: judge_network(probe_network(self._environ, self._with_ports()), self._demands)
        probes["fixes"] = lambda: probe_fixes("doctor", self._manifest, self._end - time.monotonic() - 0.3)
        self._checks["fixes"] = len(checks_of(self._manifest, "doctor"))
        return probes

    def _bytecode(self, known: Sequence[Finding]) -> str:
        if any(row.id.startswith("data-disk") for row in known):
            return ""
        return bytecode_folder(self._environ, self._demands.mount, LOCK)

    def _with_ports(self) -> Demands:
        """Return the demands with the ports of Ray's head among them, and with none while a run goes on here."""
        if any(process.busy_run for process in probe_running(VENV)):
            return replace(self._demands, ports={})
        ports = ray_ports() if self._demands.has("ray") else {}
        return replace(self._demands, ports={**ports, **self._demands.ports})

    def _has_cuda(self) -> bool:
        return self._demands.wants_gpu or self._demands.has("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")

    def _look_at_packages(self) -> list[Finding]:
        try:
            self._packages = probe_packages(self._packages.site)
        finally:
            self._packages_known.set()
        return judge_packages(self._packages, self._demands)

    def _extensions(self) -> tuple[str, ...]:
        self._packages_known.wait(max(self._end - 2 - time.monotonic(), 0.0))
        self._checks["extensions"] = len(self._packages.linked)
        return self._packages.linked

    def _torch(self, probe: StackProbe) -> Iterator[Finding]:
        facts = probe.torch(self._extensions, self._end - 0.2)
        self._note(facts, "end", "torch")
        return chain(judge_torch(facts, self._demands, VENV), judge_gpu_kernels(facts, self._demands))

    def _needs(self) -> ImageNeeds:
        """Return what the image asks of a driver."""
        require = self._environ.get("NVIDIA_REQUIRE_CUDA", "")
        compat = bool(glob.glob("/usr/local/cuda*/compat/libcuda.so.1"))
        return ImageNeeds(require=require, torch_cuda=stack_cuda(self._demands.packages), compat=compat)

    def _all_reduce(self, probe: StackProbe) -> Iterator[Finding]:
        count = min(self._driver.devices, self._demands.gpus or self._driver.devices)
        facts = probe.all_reduce(count, self._end - 0.2)
        self._note(facts, "sum", "all-reduce")
        return judge_all_reduce(facts, count) if facts.exit_code is not None or facts.idle else iter(())

    def _ray(self, probe: StackProbe) -> Iterator[Finding]:
        facts = probe.ray(self._end - 0.2)
        self._note(facts, "task", "ray task")
        return judge_ray(facts, self._demands, VENV)

    def _note(self, facts: ProgramFacts, step: str, name: str) -> None:
        if unfinished(facts, step):
            self._late.append(f"{name}: the machine was too busy to finish it in {facts.seconds:.0f} s")


class _folder:  # noqa: N801 - used like a function
    """A folder for what probes write, gone afterwards; empty where none can be made."""

    def __enter__(self) -> str:
        try:
            self._path = tempfile.mkdtemp(prefix="rlbox-doctor-")
        except OSError:
            self._path = ""
        return self._path

    def __exit__(self, *error: object) -> None:
        if self._path:
            shutil.rmtree(self._path, ignore_errors=True)
