"""Watch a running stage: its logs against its gate, its services, its limits."""

from __future__ import annotations

import time

from rlbox.act.bench import Bench, StageStopped
from rlbox.act.log_watch import LogWatch
from rlbox.act.processes import Child
from rlbox.act.ray_jobs import RayJob
from rlbox.act.services import RunningService
from rlbox.plan.causes import dead_service, ended, forbidden_line, silent, too_long
from rlbox.plan.gates import STAGE_LOG, Gate, silence_text, total_text
from rlbox.plan.run import StagePlan

_LOOK_S = 0.02
_SETTLE_LINE_S = 0.3
TOLD_TO_STOP = (0, -15, -2, 143, 130)
"""Ends of a service that its client may have asked for on its own way out."""


class StageWatch:
    """The gate of one stage and all that feeds it. Whatever ends the stage early is raised as `StageStopped`."""

    def __init__(self, bench: Bench, stage: StagePlan) -> None:
        self.gate = Gate(stage)
        self.services: list[RunningService] = []
        self.main: Child | RayJob | None = None
        self.logs = LogWatch(stage, bench.run_dir / stage.directory, self.gate)
        self._bench = bench
        self._stage = stage
        self._recorded = -1
        self._begun = time.monotonic()

    def look(self) -> None:
        """Look once at everything that can end the stage early; wait a moment when nothing was new."""
        self.follow()
        more = self.logs.read()
        self.record_gate()
        self._bench.check_going()
        self.check_services()
        self.check_forbidden()
        if time.monotonic() - self._begun > self._stage.total_s:
            self.gate.refuse("total", total_text(self._stage), "passed")
            raise StageStopped(too_long(self._stage))
        if not more:
            time.sleep(_LOOK_S)

    def check_silence(self) -> None:
        """Stop a stage whose own log does not grow."""
        if self.logs.silent_s > self._stage.silence_s:
            self.gate.refuse("silence", silence_text(self._stage), self.gate.last_line(STAGE_LOG))
            raise StageStopped(silent(self._stage))

    def check_services(self, pardoned: tuple[int, ...] = ()) -> None:
        """Stop a stage one of whose services is dead, unless it ended in one of the `pardoned` ways."""
        for service in self.services:
            code = service.child.poll()
            if code is None or code in pardoned:
                continue
            self.logs.drain()
            self.check_forbidden(service.plan.name)
            self.gate.refuse("service", service.plan.name, ended(code))
            self.record_service(service, state="ended", exit_code=code)
            running = self.main is not None
            raise StageStopped(dead_service(self._stage, service.plan, code, ready=service.ready, running=running))

    def check_forbidden(self, log: str = "") -> None:
        """Stop a stage whose logs (or the one named) held a forbidden line."""
        found = [broken for broken in self.gate.forbidden if log in ("", broken.rule.log)]
        if not found:
            return
        self.record_gate()
        first = min(found, key=lambda broken: (broken.rule.log == STAGE_LOG, broken.line.number))
        if first.rule.log == STAGE_LOG:
            self.settle(_SETTLE_LINE_S)
        raise StageStopped(forbidden_line(self._stage, first.rule, first.line.number, first.line.text))

    def settle(self, patience_s: float) -> None:
        """Wait for a service that is dying: its end came before what its clients made of it."""
        until = time.monotonic() + patience_s
        while self.services and time.monotonic() < until and not self._bench.interrupt.name:
            self.check_services(TOLD_TO_STOP)
            time.sleep(_LOOK_S)

    def follow(self) -> None:
        """Bring the driver's output of a Ray job into the stage's log."""
        if isinstance(self.main, RayJob):
            self.main.follow()

    def record(self, **changes: object) -> None:
        """Record fields of the stage, and its gate as it is now."""
        self._recorded = self.gate.revision
        self._bench.journal.change_stage(self._stage.name, gate=self.gate.states(), **changes)

    def record_gate(self) -> None:
        """Record the gate when it changed."""
        if self.gate.revision != self._recorded:
            self.record()

    def record_service(self, service: RunningService, **changes: object) -> None:
        """Record fields of a service of the stage."""
        self._bench.journal.change_service(self._stage.name, service.plan.name, **changes)
