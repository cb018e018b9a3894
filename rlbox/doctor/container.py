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

from rlbox.doctor.checks import FIXES, Family, rows_of
from rlbox.doctor.disks import places_of
from rlbox.doctor.engine import ImageNeeds, stack_cuda
from rlbox.doctor.facts import Demands, demands_of, with_gpus, with_limits
from rlbox.doctor.fix_checks import checks_of, with_dependents
from rlbox.doctor.network import ray_ports
from rlbox.doctor.processes import probe_running
from rlbox.doctor.report import Report, settle
from rlbox.doctor.scene import Scene
from rlbox.doctor.stack import StackProbe, judge_unlocked
from rlbox.doctor.stack_place import bytecode_folder, own_folder, venv_of
from rlbox.engine.gpu_access import GPUS_VARIABLE
from rlbox.findings import Finding
from rlbox.record.disk_hold import disk_holder
from rlbox.system.gpu import probe_driver
from rlbox.system.json_files import read_json_object

BUDGET_S = 9.0  # of the ten seconds; the rest is for starting Python and for ending what runs


def examine_inside(environ: Mapping[str, str], budget_s: float = BUDGET_S) -> Report:
    """Return what is wrong here; at most `budget_s` seconds after the call."""
    began = time.monotonic()
    scene = _scene(environ, began + budget_s)
    quick, slow = Probes(scene.end - 3), Probes(scene.end)
    rows = [row for row in rows_of("container", scene) if not row.slow]
    _start(quick, rows, scene)
    quick.wait()
    known = [finding for found in quick.findings.values() for finding in found]
    with _folder() as folder:
        scene = replace(scene, stack=_stack(scene, known, folder))
        late = [row for row in rows_of("container", scene, known) if row.slow]
        _start(slow, late, scene)
        slow.wait()
    own = [*known, *(row for name, found in slow.findings.items() if name != FIXES for row in found)]
    own += judge_unlocked([str(path) for path in _described(environ) if not path.is_file()])
    own = with_dependents(own, checks_of(scene.manifest, "doctor"), scene.demands.mount)
    findings, follows = settle(own, slow.findings.get(FIXES, ()))
    return Report(
        findings=findings,
        follows=follows,
        checks=sum(row.count(scene) for row in (*rows, *late)),
        unfinished=(*quick.unfinished, *slow.unfinished, *scene.late),
        seconds=time.monotonic() - began,
    )


def _start(probes: Probes, rows: Sequence[Family], scene: Scene) -> None:
    probes.start({row.name: partial(row.ask, scene) for row in rows})


def _scene(environ: Mapping[str, str], end: float) -> Scene:
    lock, manifest = (read_json_object(path, links=True) for path in _described(environ))
    venv = venv_of(own_folder(environ))
    demands = demands_of(with_limits(manifest, environ.get("RLBOX_LIMITS", "")), lock)
    demands = with_gpus(demands, environ.get(GPUS_VARIABLE, ""))
    return Scene(
        environ=environ,
        demands=demands,
        end=end,
        folders=tuple(dict.fromkeys((os.getcwd(), demands.mount, environ.get("HOME", "/")))),
        places=places_of(environ, demands.mount),
        needs=partial(_needs, environ, demands),
        free_ports=partial(_free_ports, demands, venv),
        manifest=manifest,
        driver=probe_driver(),
        venv=venv,
    )


def _described(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return where lock and fixes of what this runs in are written."""
    own = own_folder(environ)
    return Path(own, "share/lock.json"), Path(own, "share/fixes.json")


def _stack(scene: Scene, known: Sequence[Finding], folder: str) -> StackProbe:
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    no_disk = any(row.id.startswith("data-disk") for row in known)
    bytecode = "" if no_disk else bytecode_folder(scene.environ, scene.demands.mount, _described(scene.environ)[0])
    return StackProbe(scene.environ, f"{scene.venv}/bin/python", folder, token, bytecode)


def _needs(environ: Mapping[str, str], demands: Demands) -> ImageNeeds:
    """Return what the image asks of a driver."""
    require = environ.get("NVIDIA_REQUIRE_CUDA", "")
    compat = bool(glob.glob("/usr/local/cuda*/compat/libcuda.so.1"))
    return ImageNeeds(require=require, torch_cuda=stack_cuda(demands.packages), compat=compat)


def _free_ports(demands: Demands, venv: str) -> Mapping[str, int]:
    """Return the ports of jobs and of Ray's head; none while a run goes on here, or on the data disk."""
    if any(process.busy_run for process in probe_running(venv)) or disk_holder(Path(demands.mount).resolve()):
        return {}
    return {**(ray_ports() if demands.has("ray") else {}), **demands.ports}


@contextmanager
def _folder() -> Iterator[str]:
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
class Probes:
    """Probes that run in threads: daemons, since one that hangs in the kernel must not keep rlbox from ending."""

    deadline: float
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _found: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def start(self, probes: Mapping[str, Probe]) -> None:
        """Start each probe in a thread of its own."""
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
                self.unfinished.append(f"{name}: not done in time")

    def goes_on(self, name: str) -> bool:
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
