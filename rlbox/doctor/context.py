"""What is known of a container, or host, before it is examined."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from rlbox.amounts import duration_text
from rlbox.doctor.gpus import DriverRequirements
from rlbox.doctor.network import Endpoint
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import ProgramFacts, StackProbe, ran_out_of_time
from rlbox.i18n import _
from rlbox.system.gpu import GpuDriver
from rlbox.values import VENV


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
    directories: Sequence[tuple[str, str]] | None
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
