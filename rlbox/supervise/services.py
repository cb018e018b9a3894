"""A service beside a stage: start it, find out when it really does its work, and whether it goes on doing it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping

from rlbox.config.pattern import compile_re2
from rlbox.gate.http_probe import request_and_find_problem
from rlbox.i18n import _
from rlbox.job.gate import Ready
from rlbox.job.job import FLOORS
from rlbox.job.names import ProblemOrEmpty
from rlbox.job.plan import ServicePlan
from rlbox.logs.lines import LineBlock, list_variants_without_ray_rank_and_bar
from rlbox.logs.patterns import compile_pattern_set
from rlbox.system.counters import ActivitySample, compute_cpu_usage, compute_rates, probe_machine_and_process_activity
from rlbox.system.limits import count_usable_cores
from rlbox.system.poller import Poller
from rlbox.system.run_processes import ChildProcess, RunProcesses
from rlbox.values import Command

_START_PROBE_S, _START_PATIENCE_S = 1.0, 10.0
_LONGEST_START = 10.0
_PAUSE_S = 0.2
_CONNECT_S = 2.0
_ASKED_AGAIN = 4
"""How often a service that was ready is asked within the time in which it must answer."""

_NO_ANSWER = _("no answer yet")


class ActivityExtendedStartLimit:
    """How long a service may take to start: `limit_s`, and longer while it gets on.

    One whose processes read, write or fill memory may take ten times as long; one that only computes twice as long,
    counted by what it gets of the cores that it could use: a server that polls looks like one that compiles.
    """

    def __init__(self, limit_s: float, list_pids: Callable[[], Iterable[int]]) -> None:
        self._limit_s, self._list_pids = limit_s, list_pids
        self._begun_s = time.monotonic()
        self._loaded_s = self._computed_s = self._begun_s + limit_s
        self._compute_time_s = 0.0
        self._cores = count_usable_cores()
        self._before: ActivitySample | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def poll_exceeded_without_progress(self) -> bool:
        """Sample the processes once a second when the time is over, and return whether the service must be stopped."""
        now_s = time.monotonic()
        if self.elapsed_s <= self._limit_s:
            return False
        if self._before is None or now_s - self._before.time_s >= _START_PROBE_S:
            self._probe(now_s)
        patience_s = min(_START_PATIENCE_S, max(2 * _START_PROBE_S, self._limit_s / 4))
        loads = now_s - self._loaded_s <= patience_s and self.elapsed_s <= _LONGEST_START * self._limit_s
        return not loads and (now_s - self._computed_s > patience_s or self._compute_time_s > self._limit_s)

    def _probe(self, now_s: float) -> None:
        before, self._before = self._before, probe_machine_and_process_activity(self._list_pids(), with_gpus=False)
        if before is None:
            return
        rates, usage = compute_rates(before, self._before), compute_cpu_usage(before, self._before, self._cores)
        if any(getattr(rates, sign) >= FLOORS[sign] for sign in ("read", "write", "memory")):
            self._loaded_s = now_s
        if usage.wanted_cores >= FLOORS["cpu"]:
            self._computed_s = now_s
        self._compute_time_s += rates.seconds * usage.used_share_of_wanted_or_1


class RunningService:
    """A started service; it is ready once its request was answered, its port was open and its line was written.

    `headers` are those of the ready request, as a Ray head with a token wants them.
    """

    def __init__(
        self,
        plan: ServicePlan,
        processes: RunProcesses,
        command: Command,
        output: int,
        stage: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self._headers = headers
        self.child: ChildProcess = processes.start(command, output, stage=stage, part=plan.name)
        self.started = time.monotonic()
        self._line_missing = bool(plan.ready.line)
        self._good_at: float | None = None
        self._poller = Poller(self._ask, _PAUSE_S, lambda problem: not problem)

    @property
    def readiness_problem(self) -> ProblemOrEmpty:
        problem = self._poller.latest
        if problem is None:
            return _NO_ANSWER
        absent = _("no line like /{line}/ yet").format(line=self.plan.ready.line)
        return absent if not problem and self._line_missing else problem

    @property
    def has_been_ready(self) -> bool:
        return self._good_at is not None and not self._line_missing

    def record_ready_line_if_present(self, texts: LineBlock) -> None:
        line = self.plan.ready.line
        if self._line_missing and compile_pattern_set((line,)).find_next_candidate(texts.joined, 0) is not None:
            fits = compile_re2(line).search
            self._line_missing = not any(
                fits(way) for text in texts for way in list_variants_without_ray_rank_and_bar(text)
            )

    def restart_readiness_probe(self) -> None:
        self._poller.request_stop()
        self._good_at, self.started = None, time.monotonic()
        self._poller = Poller(self._ask, _PAUSE_S, lambda problem: not problem)

    def begin_liveness_checks(self) -> None:
        self._poller.request_stop()
        self._good_at = time.monotonic()
        if self.plan.answer_s:
            self._poller = Poller(self._ask, max(_PAUSE_S, self.plan.answer_s / _ASKED_AGAIN), lambda problem: False)

    @property
    def is_unresponsive(self) -> bool:
        return bool(self.plan.answer_s) and time.monotonic() - (self._good_at or self.started) > self.plan.answer_s

    @property
    def last_problem_or_no_answer(self) -> str:
        return "no answer" if self.readiness_problem in ("", _NO_ANSWER) else self.readiness_problem

    def request_probe_stop(self) -> None:
        self._poller.request_stop()

    def _ask(self) -> ProblemOrEmpty:
        problem = find_port_or_url_problem(self.plan.ready, self._headers)
        if not problem:
            self._good_at = time.monotonic()
        return problem


def find_port_or_url_problem(ready: Ready, headers: Mapping[str, str] | None = None) -> ProblemOrEmpty:
    if ready.port:
        try:
            socket.create_connection(("127.0.0.1", int(ready.port)), _CONNECT_S).close()
        except OSError as error:
            return f"port {ready.port}: {error.strerror or 'no answer in time'}"
    return request_and_find_problem(ready, headers=headers) if ready.url else ""
