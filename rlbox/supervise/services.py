"""A service beside a stage: start it, find out when it really does its work, and whether it goes on doing it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from rlbox.config.pattern import compile_re2
from rlbox.gate.http_probe import CONNECTION_REFUSED, find_http_problem
from rlbox.job.gate import Ready
from rlbox.job.names import ProblemOrEmpty
from rlbox.job.plan import ServicePlan
from rlbox.logs.lines import LineBlock, list_prefix_stripped_variants
from rlbox.logs.patterns import compile_pattern_set
from rlbox.system.poller import Poller
from rlbox.system.run_processes import ChildProcess, RunProcesses
from rlbox.values import Command

_KINDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MOST_FILES = 10_000


def count_weight_bytes(argv: Iterable[str]) -> int:
    """Return the size of the weights below the folders that a command names, and of the files; 0 without any.

    A folder with weights in two forms counts once, as the form that loaders prefer.
    """
    named = {os.path.realpath(path) for word in argv for path in (word, word.partition("=")[2]) if path[:1] == "/"}
    total = 0
    for path in named:
        with contextlib.suppress(OSError):  # it is not there yet, or nobody's to look into
            sizes: dict[str, int] = {}
            for name, size in _list_files(path):
                kind = os.path.splitext(name)[1]
                sizes[kind] = sizes.get(kind, 0) + size
            total += next((sizes[kind] for kind in _KINDS if kind in sizes), 0)
    return total


def _list_files(path: str) -> list[tuple[str, int]]:
    if not os.path.isdir(path):
        return [(path, os.stat(path).st_size)]
    with os.scandir(path) as entries:
        return [(e.name, e.stat().st_size) for e in itertools.islice(entries, _MOST_FILES) if e.is_file()]


_PAUSE_S = 0.2
_CONNECT_S = 2.0
_ASKED_AGAIN = 4
"""How often a service that was ready is asked within the time in which it must answer."""

_NO_ANSWER = "no answer yet"
_TAKEN_S = 0.5


class RunningService:
    """A started service; it is ready once its request was answered, its port was open and its line was written.

    `headers` are those of the ready request, as a Ray head with a token wants them; `clock` counts its limits.
    """

    def __init__(
        self,
        plan: ServicePlan,
        processes: RunProcesses,
        command: Command,
        output: int,
        stage: str,
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self._clock = plan, clock
        self._headers = headers
        self.child: ChildProcess = processes.start(command, output, stage=stage, part=plan.name)
        self.started = self._clock()
        self._line_missing = bool(plan.ready.line)
        self._good_at: float | None = None
        self._grown_at = self.started
        self._log_bytes = 0
        self._poller = Poller(self._ask, _PAUSE_S, lambda problem: not problem)

    @property
    def readiness_problem(self) -> ProblemOrEmpty:
        problem = self._poller.latest
        listens_by_now = problem == CONNECTION_REFUSED and self._poller.current_probe_elapsed_s > _TAKEN_S
        if problem is None or listens_by_now:
            return _NO_ANSWER
        return f"no line like /{self.plan.ready.line}/ yet" if not problem and self._line_missing else problem

    @property
    def has_been_ready(self) -> bool:
        return self._good_at is not None and not self._line_missing

    def look_for_ready_line(self, texts: LineBlock) -> None:
        line = self.plan.ready.line
        if self._line_missing and compile_pattern_set((line,)).find_next_candidate(texts.joined, 0) >= 0:
            fits = compile_re2(line).search
            self._line_missing = not any(fits(way) for text in texts for way in list_prefix_stripped_variants(text))

    def restart_readiness_probe(self) -> None:
        self._poller.request_stop()
        self._good_at, self.started = None, self._clock()
        self._poller = Poller(self._ask, _PAUSE_S, lambda problem: not problem)

    def begin_liveness_checks(self) -> None:
        self._poller.request_stop()
        self._good_at = self._grown_at = self._clock()
        if self.plan.answer_s:
            self._poller = Poller(self._ask, max(_PAUSE_S, self.plan.answer_s / _ASKED_AGAIN), lambda problem: False)

    @property
    def is_unresponsive(self) -> bool:
        return bool(self.plan.answer_s) and self._clock() - (self._good_at or self.started) > self.plan.answer_s

    @property
    def last_answer_description(self) -> str:
        return "no answer" if self.readiness_problem in ("", _NO_ANSWER) else self.readiness_problem

    def is_silent(self, log_bytes: int) -> bool:
        now = self._clock()
        if log_bytes != self._log_bytes:
            self._log_bytes, self._grown_at = log_bytes, now
        return bool(self.plan.silence_s) and now - self._grown_at > self.plan.silence_s

    def stop_probing(self) -> None:
        self._poller.request_stop()

    def _ask(self) -> ProblemOrEmpty:
        problem = find_readiness_problem(self.plan.ready, self._headers)
        if not problem:
            self._good_at = self._clock()
        return problem


def find_readiness_problem(ready: Ready, headers: Mapping[str, str] | None = None) -> ProblemOrEmpty:
    if ready.port:
        try:
            socket.create_connection(("127.0.0.1", int(ready.port)), _CONNECT_S).close()
        except OSError as error:
            return f"port {ready.port}: {error.strerror or 'no answer in time'}"
    return find_http_problem(ready, headers=headers) if ready.url else ""
