"""Find out while a stage runs whether it hangs, in which phase, and what it waits for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from rlbox.causes.cause import Cause
from rlbox.hang.act.evidence import collect_hang
from rlbox.hang.cause import hung, report_path
from rlbox.hang.judge import HangJudge, Stall, tail_of
from rlbox.hang.phases import PhaseLine, phases_of
from rlbox.hang.waits import first_waits
from rlbox.job.load import load_phases
from rlbox.job.names import STAGE_LOG
from rlbox.job.phases import PhasePlan, plan_phases
from rlbox.job.plan import StagePlan
from rlbox.logs.lines import Texts
from rlbox.machine.act.counters import probe_activity
from rlbox.machine.counters import Activity, rates_between
from rlbox.supervise.bench import Bench

_LONGEST_LOOK_S = 2.0
"""What one look counts at most: a supervisor that was stopped, or a machine that slept, has seen nothing meanwhile."""

_CALM_S, _QUIET_S = 10.0, 1.0
_BAR_S = 0.2
_BATCH_S = 0.4
"""How long lines may wait when there were some a moment ago: a log that never rests is heard twice a second."""
_MUCH_BYTES, _END_BYTES = 1 << 18, 1 << 14
"""When this much waits, only the end of each further block is kept."""
_MEMBERS_S = 5.0
_RECORD_S = 1.0
_QUOTED = 200


class Logs(Protocol):
    """What is asked of the logs of a stage."""

    @property
    def taken(self) -> Mapping[str, int]:
        """How many bytes of each log were handed over."""

    def unfinished(self, name: str) -> str:
        """Return the line of a log that has not ended yet, as it is shown now."""


class HangWatch:
    """Watches one stage from its first `look` on; `take` is given every block of its logs."""

    def __init__(
        self,
        bench: Bench,
        stage: StagePlan,
        *,
        clock: Callable[[], float] = time.monotonic,
        probe: Callable[[Iterable[int]], Activity] = probe_activity,
    ) -> None:
        shipped = load_phases()
        phases = phases_of(stage.phases, plan_phases(shipped.phases, str), stage.silence_s, stated=stage.silence_stated)
        self._bench, self._stage, self._clock, self._probe = bench, stage, clock, probe
        self._background = shipped.background
        self._judge = HangJudge(phases, stage.silence_s, stage.steps, 0.0)
        self._now_s = 0.0
        self._looked_s: float | None = None
        self._size = -1
        self._bar_s = self._recorded_s = self._members_s = self._took_s = -_CALM_S
        self._blocks: list[bytes] = []
        self._waiting = 0
        self._before: Activity | None = None
        self._pids: tuple[int, ...] = ()
        self._entered: PhaseLine | None = None
        self._noticed = False
        self._began_unix = time.time()

    @property
    def phase(self) -> str:
        """The name of the phase that the stage is in; empty before the first marker."""
        return self._judge.phase.name

    def take(self, log: str, first: int, offset: int, texts: Texts) -> None:
        """Take lines of a log; only the stage's own says how far the stage is."""
        if log != STAGE_LOG:
            return
        if texts:
            self._size = -1
            self._blocks.append(tail_of(texts.joined, _END_BYTES) if self._waiting > _MUCH_BYTES else texts.joined)
            self._waiting += len(self._blocks[-1])
            self._listen()
        if texts.past and (line := self._judge.grew(texts.past[-1][1].decode("utf-8", "replace"), self._now_s)):
            self._enter([line])

    def look(self, logs: Logs) -> Cause | None:
        """Return why the stage must be stopped, its evidence being written by then; None while it is well."""
        self._tick()
        self._listen()
        self._look_at_bar(logs)
        self._look_at_processes()
        self._record()
        if stall := self._judge.judge(self._now_s):
            return self._hung(stall)
        self._notice()
        return None

    def explain(self, cause: Cause, limit_s: float, service: str = "") -> Cause:
        """Take down what a stage was doing that ran longer than it may, or a service, as `start of vllm` names it."""
        self._listen(wait_s=0)
        phase, silent_s = self._judge.phase, self._judge.silent_s(self._now_s)
        if service:
            phase = PhasePlan(name=service, silence_s=limit_s)
        rule: Literal["ready", "total"] = "ready" if service else "total"
        stall = Stall(rule=rule, phase=phase, silent_s=silent_s, limit_s=limit_s)
        return dataclasses.replace(cause, phase=phase.name, waits=self._collect(stall), report=report_path(self._stage))

    def _listen(self, wait_s: float = _BATCH_S) -> None:
        """Hand the lines that came to the judge, unless some were handed over less than `wait_s` ago."""
        if not self._blocks or self._now_s - self._took_s < wait_s:
            return
        block, self._blocks, self._waiting = b"\n".join(self._blocks), [], 0
        self._took_s = self._now_s
        self._enter(self._judge.take(block, self._now_s))

    def _hung(self, stall: Stall) -> Cause:
        self._tell("hang", stall)
        return hung(self._stage, stall, self._collect(stall))

    def _collect(self, stall: Stall) -> str:
        """Write the evidence; return what the first process, the odd one out, waits for."""
        self._recorded_s = -_CALM_S
        self._record()
        try:
            waits = collect_hang(
                self._bench,
                self._stage,
                stall,
                self._judge.recent(self._now_s),
                background=self._background,
                began_unix=self._began_unix,
            )
        except OSError as error:
            self._bench.journal.event(self._stage.name, "evidence-failed", why=str(error))
            return ""
        return first_waits(waits)

    def _tick(self) -> None:
        now = self._clock()
        if self._looked_s is not None:
            self._now_s += min(max(now - self._looked_s, 0.0), _LONGEST_LOOK_S)
        else:
            self._judge.begin(self._now_s)
        self._looked_s = now

    def _look_at_bar(self, logs: Logs) -> None:
        if self._now_s - self._bar_s < _BAR_S:
            return
        self._bar_s, size = self._now_s, logs.taken.get(STAGE_LOG, 0)
        grown, self._size = size != self._size >= 0, size
        if grown and (line := self._judge.grew(logs.unfinished(STAGE_LOG), self._now_s)):
            self._enter([line])

    def _look_at_processes(self) -> None:
        before = self._before
        if before and self._now_s - before.t_s < self._pause_s():
            return
        activity = self._activity()
        if before:
            working = self._judge.moved_s > before.t_s
            self._judge.live(rates_between(before, activity), self._now_s, working=working)
        self._before = activity

    def _pause_s(self) -> float:
        """Return how long the processes need not be looked at: long while the log goes on, not when it is still."""
        quiet_s, step_s = self._now_s - self._judge.moved_s, self._judge.step_s
        limit_s = self._judge.phase.silence_s
        if step_s and quiet_s > max(_QUIET_S, 1.2 * step_s):
            return min(max(step_s, 1.0), 5.0)
        if quiet_s > min(2 * _QUIET_S, limit_s / 4):
            return min(max(limit_s / 8, 0.5), 5.0)
        return min(_CALM_S, max(limit_s / 4, 0.5))

    def _activity(self) -> Activity:
        if self._now_s - self._members_s >= _MEMBERS_S:
            self._pids = tuple(process.pid for process in self._bench.processes.members())
            self._members_s = self._now_s
        found = self._probe(self._pids)
        kept = tuple(process for process in found.processes if not process.name.startswith(self._background))
        return dataclasses.replace(found, t_s=self._now_s, processes=kept)

    def _notice(self) -> None:
        stall = self._judge.notice(self._now_s)
        if stall and not self._noticed:
            self._tell("stalled", stall)
        self._noticed = stall is not None

    def _tell(self, event: str, stall: Stall) -> None:
        self._bench.journal.event(
            self._stage.name,
            event,
            phase=stall.phase.name,
            rule=stall.rule,
            silent_s=round(stall.silent_s, 1),
            limit_s=round(stall.limit_s, 1),
            step_s=round(stall.step_s, 3),
        )

    def _enter(self, lines: Sequence[PhaseLine]) -> None:
        if lines:
            self._entered = lines[-1]

    def _record(self) -> None:
        """Record the phase when it changed, once a second at most: markers may come with every step."""
        line = self._entered
        if line is None or self._now_s - self._recorded_s < _RECORD_S:
            return
        self._entered, phase = None, self._judge.phase
        state = next(state for state in self._bench.journal.state.stages if state.name == self._stage.name)
        if phase.name == state.phase:
            return
        self._recorded_s = self._now_s
        self._bench.journal.change_stage(self._stage.name, phase=phase.name)
        self._bench.journal.event(
            self._stage.name,
            "phase",
            phase=phase.name,
            log=STAGE_LOG,
            line=line.text[:_QUOTED],
            limit_s=phase.silence_s,
        )
