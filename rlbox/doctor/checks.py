"""The families of doctor's checks: a row each, with the judge that counts them and what it is asked about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from rlbox.doctor.check_group import Judge
from rlbox.doctor.disks import judge_data_disk, judge_place, judge_places, probe_places
from rlbox.doctor.engine import judge_driver, judge_engine, probe_engine
from rlbox.doctor.environment import judge_environment, judge_tokens, probe_environment
from rlbox.doctor.fix_checks import checks_of, judge_fix, probe_fixes
from rlbox.doctor.gpus import judge_all_reduce, judge_gpu_kernels, judge_gpus
from rlbox.doctor.limits import judge_limits, probe_limits
from rlbox.doctor.network import judge_network, probe_network
from rlbox.doctor.packages import judge_packages, probe_packages, site_packages
from rlbox.doctor.paths import judge_paths, probe_paths
from rlbox.doctor.processes import judge_processes, probe_running
from rlbox.doctor.report import is_broken
from rlbox.doctor.sandbox import judge_sandbox, probe_sandbox
from rlbox.doctor.scene import Scene
from rlbox.doctor.stack import judge_link, judge_ray, judge_torch
from rlbox.findings import Finding
from rlbox.system.gpu import probe_driver

Where = Literal["container", "host", "both"]
_SPARE_S = 0.2  # before the end, for ending what a probe started


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of checks.

    `ask` probes and judges, in a thread of its own; in a container the `slow` families are asked after all others are
    known. `when` says whether it makes sense there, `times` how many things each check is asked about. `cause` is an id
    of its own findings: where an earlier finding breaks that, the family is not asked.
    """

    name: str
    where: Where
    judge: Judge[Any]
    ask: Callable[[Scene], Iterable[Finding]]
    slow: bool = False
    when: Callable[[Scene], bool] = lambda scene: True
    times: Callable[[Scene], int] = lambda scene: 1
    cause: str = ""

    def count(self, scene: Scene) -> int:
        """Return how many checks it is; of some that is known only when they were asked."""
        return len(self.judge) * self.times(scene)


def rows_of(where: Where, scene: Scene, known: Sequence[Finding] = ()) -> list[Family]:
    """Return the families that are asked there, in the order of the table; `known` is what was found before."""
    rows = [row for row in ROWS if row.where in (where, "both") and row.when(scene)]
    return [row for row in rows if not (row.cause and is_broken(row.cause, known))]


def _network(scene: Scene) -> list[Finding]:
    asked = replace(scene.demands, ports=scene.free_ports())
    return judge_network(probe_network(scene.environ, asked, scene.mirrors()), scene.demands)


def _ray(scene: Scene) -> list[Finding]:
    facts = scene.stack.ray(scene.end - _SPARE_S)
    scene.note(facts, "task", "ray task")
    return judge_ray(facts, scene.demands, scene.venv)


def _torch(scene: Scene) -> Iterator[Finding]:
    facts = scene.stack.torch(lambda: scene.extensions(scene.end - 2 - time.monotonic()), scene.end - _SPARE_S)
    scene.note(facts, "end", "torch")
    return chain(judge_torch(facts, scene.demands, scene.venv), judge_gpu_kernels(facts, scene.demands))


def _link(scene: Scene) -> list[Finding]:
    demands = scene.demands
    cuda = demands.wants_gpu or demands.has("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
    return judge_link(scene.stack.link(demands, cuda=cuda))


def _all_reduce(scene: Scene) -> list[Finding]:
    facts = scene.stack.all_reduce(scene.gpus, scene.end - _SPARE_S)
    scene.note(facts, "sum", "all-reduce")
    return judge_all_reduce(facts, scene.gpus) if facts.exit_code is not None or facts.idle else []


def _packages(scene: Scene) -> list[Finding]:
    linked: tuple[str, ...] = ()
    try:
        facts = probe_packages(site_packages(scene.demands.python or "3", scene.venv))
        linked = facts.linked
    finally:
        scene.linked.set_result(linked)
    return judge_packages(facts, scene.demands)


def _has_gpus(scene: Scene) -> bool:
    return scene.driver.present and not scene.driver.error


FIXES = "fixes"
"""Name of the family whose findings may mean the same as another's."""
# fmt: off
ROWS = (
    Family(name="limits", where="container", judge=judge_limits,
        ask=lambda s: judge_limits(probe_limits(), s.demands)),
    Family(name="disks", where="container", judge=judge_place, times=lambda s: len(s.places or ()),
        ask=lambda s: judge_places(probe_places(s.places or ()), s.demands, s.user)),
    Family(name="paths", where="container", judge=judge_paths,
        ask=lambda s: judge_paths(probe_paths(s.environ, s.demands, s.venv), s.demands)),
    Family(name="environment", where="container", judge=judge_environment,
        ask=lambda s: judge_environment(probe_environment(s.environ, s.folders), s.demands)),
    Family(name="processes", where="both", judge=judge_processes,
        ask=lambda s: judge_processes(probe_running(s.venv))),
    Family(name="sandbox", where="container", judge=judge_sandbox, slow=True,
        ask=lambda s: judge_sandbox(probe_sandbox(s.end - time.monotonic() - _SPARE_S))),
    Family(name="ray task", where="container", judge=judge_ray, slow=True, cause="ray-task",
        when=lambda s: s.stack.usable and s.demands.has("ray"), ask=_ray),
    Family(name="torch", where="container", judge=judge_torch, slow=True, cause="torch-op",
        when=lambda s: s.stack.usable and s.demands.has("torch"), times=lambda s: 1 + len(s.extensions()), ask=_torch),
    Family(name="link", where="container", judge=judge_link, slow=True, cause="jit-link",
        when=lambda s: s.stack.usable, ask=_link),
    Family(name="gpu driver", where="container", judge=judge_driver, slow=True,
        when=lambda s: s.driver.present or s.demands.wants_gpu,
        ask=lambda s: judge_driver(s.driver, s.needs(), s.demands)),
    Family(name="gpus", where="container", judge=judge_gpus, slow=True, when=_has_gpus,
        ask=lambda s: judge_gpus(s.stack.gpu(s.end - _SPARE_S), s.demands)),
    Family(name="all-reduce", where="container", judge=judge_all_reduce, slow=True,
        when=lambda s: _has_gpus(s) and s.driver.devices > 1 and s.demands.has("torch"), ask=_all_reduce),
    Family(name="packages", where="container", judge=judge_packages, slow=True, ask=_packages),
    Family(name="network", where="both", judge=judge_network, slow=True, ask=_network),
    Family(name=FIXES, where="container", judge=judge_fix, slow=True,
        times=lambda s: len(checks_of(s.manifest, "doctor")),
        ask=lambda s: probe_fixes("doctor", s.manifest, s.end - time.monotonic() - 0.3, environ=s.environ)),
    Family(name="engine", where="host", judge=judge_engine,
        ask=lambda s: judge_engine(probe_engine(), s.demands)),
    Family(name="driver", where="host", judge=judge_driver,
        ask=lambda s: judge_driver(probe_driver(), s.needs(), s.demands)),
    Family(name="tokens", where="host", judge=judge_tokens,
        ask=lambda s: judge_tokens(probe_environment(s.environ, s.folders), s.demands)),
    Family(name="data disk", where="host", judge=judge_data_disk, when=lambda s: s.places is not None,
        ask=lambda s: judge_data_disk(probe_places(s.places or ()), s.demands, s.user)),
)
# fmt: on
"""Every family, quick ones first; of each kind those that take longest first."""
