"""A worker process: starts the programs of one plan after the other behind walls, measures them and reports.

It has a single thread: the HTTP server has many, and a fork of one of those may inherit a lock that nobody releases.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from rlbox.sandbox.cgroup import PREFIX, ProgramCgroup
from rlbox.sandbox.filesystem import (
    SHARED_FOLDERS,
    enter_user_and_mount_namespace,
    mount_private_tmp_and_shm,
    require_outside_tmp_and_shm,
    unmount_private_tmp_and_shm,
)
from rlbox.sandbox.isolation import CHECKER_FOLDER, StartError, prepare_filters, start_program
from rlbox.sandbox.monitor import INTERVAL_S, ProcessMonitor
from rlbox.sandbox.plan import (
    CGROUP,
    NAMESPACES,
    IsolationLevel,
    Outcome,
    Plan,
    ProgramExit,
    decode_plan,
    encode_json_line,
)
from rlbox.sandbox.request import compute_wall_limit
from rlbox.sandbox.scratch import read_files_or_omit, write_files
from rlbox.sandbox.streams import ProgramStreams
from rlbox.system.libc import set_child_subreaper
from rlbox.system.safe_files import remove_tree

_PRIVATE_FOLDER = Path("/tmp/program")  # noqa: S108 in a /tmp of the programs' own


def serve_plans(connection: socket.socket) -> None:
    """Run each plan that comes over `connection`, until that closes or something of a plan could not be ended."""
    set_child_subreaper()
    worker: _Worker | None = None
    try:
        with connection.makefile("rb") as stream:
            for line in stream:
                plan = decode_plan(line)
                worker = worker or _Worker(plan)
                outcome = worker.run(plan, connection.fileno())
                connection.sendall(encode_json_line(outcome))
                if outcome.has_live_processes:
                    return
    finally:
        if worker:
            worker.close()


class _Worker:
    """What the programs of all plans share: a control group, and namespaces; both are empty between two plans."""

    def __init__(self, plan: Plan) -> None:
        self._cgroup = ProgramCgroup(f"{PREFIX}{os.getppid()}-{os.getpid()}") if CGROUP in plan.wanted_layers else None
        self._missing: dict[str, str] = {}
        self._has_namespaces = False
        if NAMESPACES in plan.wanted_layers:
            try:
                require_outside_tmp_and_shm((*plan.readable_paths, CHECKER_FOLDER))
                enter_user_and_mount_namespace()
                self._has_namespaces = True
            except OSError as error:
                self._missing[NAMESPACES] = str(error)
        prepare_filters()
        gc.freeze()  # programs begin as forks of this process: what it has loaded is shared with them

    def close(self) -> None:
        if self._cgroup:
            self._cgroup.remove_if_empty()

    def run(self, plan: Plan, control: int) -> Outcome:
        """Run the programs of a plan until the first one ends; `control` becomes readable when nobody awaits them."""
        began = time.monotonic()
        try:
            with self._make_folder(plan) as folder:
                return self._run_in(folder, plan, control, began)
        except OSError as error:
            return Outcome(limit="start", message=f"no folder could be made for a program: {error}")

    @contextlib.contextmanager
    def _make_folder(self, plan: Plan) -> Iterator[Path]:
        """Yield the programs' folder, in memory if possible; nothing of it is left afterwards."""
        folder = _PRIVATE_FOLDER if self._has_namespaces else Path(plan.scratch)
        if self._has_namespaces:
            mount_private_tmp_and_shm(plan.limits.disk_mb)
        try:
            folder.mkdir(mode=0o700)
            write_files(folder, {name: base64.b64decode(content) for name, content in plan.files.items()})
            yield folder
        finally:
            if self._has_namespaces:
                unmount_private_tmp_and_shm()
            else:
                with contextlib.suppress(OSError):  # the server tries again at its end
                    remove_tree(folder)

    def _run_in(self, folder: Path, plan: Plan, control: int, began: float) -> Outcome:
        if self._cgroup:  # files in memory count, too
            self._cgroup.start_request((plan.limits.memory_mb + plan.limits.disk_mb) << 20)
        writable = SHARED_FOLDERS if self._has_namespaces else (str(folder),)
        monitor = ProcessMonitor(plan.limits, plan.max_cpu_s, None if self._has_namespaces else folder, self._cgroup)
        level, message = IsolationLevel.of((), {}), ""
        with contextlib.ExitStack() as stack:
            streams = stack.enter_context(ProgramStreams(plan.stdin, plan.check, plan.limits.output_bytes))
            try:
                for number, fds in enumerate(streams.child_fds):
                    pid, level, listener = start_program(plan, number, fds, folder, writable, self._cgroup)
                    monitor.leaders.append(pid)
                    if listener is not None:
                        stack.callback(os.close, listener)
                        monitor.listeners.append(listener)
                streams.close_child_fds()
                first = os.pidfd_open(monitor.leaders[0])
                stack.callback(os.close, first)
                _wait(monitor, streams, first, control, began + compute_wall_limit(plan.max_cpu_s))
            except (StartError, OSError) as error:
                monitor.limit, message = "start", str(error)
            has_ended = monitor.kill_all()
            for reader in streams.reader_fds:
                streams.read_available(reader)
            if streams.is_full:  # since the last look, by a program that has ended
                monitor.limit = monitor.limit or "output"
        files = {} if message else read_files_or_omit(folder, plan.fetch, plan.limits.disk_mb << 20)
        return Outcome(
            limit=monitor.limit,
            message=message,
            cpu_s=round(monitor.cpu_s, 4),
            wall_s=round(time.monotonic() - began, 4),
            memory_mb=monitor.peak_bytes >> 20,
            programs=[
                ProgramExit(monitor.exit_codes.get(leader), *streams.outputs(number))
                for number, leader in enumerate(monitor.leaders)
            ],
            verdict=streams.read_checker_verdict(),
            layers=(NAMESPACES, *level.layers) if self._has_namespaces else level.layers,
            missing=self._missing | level.missing,
            has_live_processes=not has_ended,
            files={name: base64.b64encode(content).decode() for name, content in files.items()},
        )


def _wait(monitor: ProcessMonitor, streams: ProgramStreams, first: int, control: int, deadline: float) -> None:
    """Wait until the first program has ended, when `first` becomes readable, or a limit is passed."""
    poll = select.poll()
    for fd in (first, control, *streams.reader_fds, *monitor.listeners):
        poll.register(fd, select.POLLIN)
    due = time.monotonic() + INTERVAL_S
    while not monitor.limit:
        for fd, event in poll.poll(max(0.0, due - time.monotonic()) * 1000):
            if fd == first:
                return
            if fd == control:
                monitor.limit = "cancelled"
            elif fd in monitor.listeners and event & select.POLLIN:
                monitor.answer_fork(fd)
            elif fd in monitor.listeners or not streams.read_available(fd):
                poll.unregister(fd)
        if time.monotonic() >= due:
            monitor.measure_and_record_exceeded_limit(is_output_full=streams.is_full)
            due = time.monotonic() + INTERVAL_S
        if time.monotonic() > deadline:
            monitor.limit = monitor.limit or "wall"
