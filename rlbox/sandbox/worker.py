"""A worker process: starts the programs of one plan after the other behind walls, measures them and reports.

It has a single thread: the HTTP server has many, and a fork of one of those may inherit a lock that nobody releases.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.sandbox.cgroup import ReusedMemoryCpuCgroup, format_cgroup_name, remove_cgroup_if_empty
from rlbox.sandbox.isolation import StartedProgram, StartError, start_isolated_program
from rlbox.sandbox.monitor import INTERVAL_S, ProcessMonitor
from rlbox.sandbox.plan import CGROUP, Plan, PlanOutcome, ProgramExit, decode_plan, encode_json_line
from rlbox.sandbox.request import compute_wall_limit_s
from rlbox.system.libc import set_child_subreaper
from rlbox.system.safe_files import read_bytes, remove_tree

_CHUNK = 1 << 16
_MIN_FREE_BYTES = 1 << 20
"""With less, a write of the program may have failed for want of space that others took."""


def serve_plans(connection: socket.socket) -> None:
    """Run each plan that comes over `connection`, until that closes or something of a plan could not be ended."""
    set_child_subreaper()
    cgroup_name = format_cgroup_name(os.getppid(), os.getpid())
    cgroup: ReusedMemoryCpuCgroup | None = None
    try:
        with connection.makefile("rb") as stream:
            for line in stream:
                plan = decode_plan(line)  # all plans want the same layers, and share the group: it is empty between two
                cgroup = cgroup or ReusedMemoryCpuCgroup(cgroup_name, is_wanted=CGROUP in plan.wanted_layers)
                outcome = _run_plan(plan, cgroup, connection.fileno())
                connection.sendall(encode_json_line(outcome))
                if outcome.has_live_processes:
                    return
    finally:
        remove_cgroup_if_empty(cgroup_name)


def _run_plan(plan: Plan, cgroup: ReusedMemoryCpuCgroup, control: int) -> PlanOutcome:
    """Run the programs of a plan until the first one ends; `control` becomes readable when nobody awaits them."""
    began, folder = time.monotonic(), Path(plan.scratch)
    try:
        _make_folder(folder, plan.files)
        return _run_in(folder, plan, cgroup, control, began)
    except OSError as error:
        return PlanOutcome(limit="start", message=f"no folder could be made for a program: {error}")
    finally:
        with contextlib.suppress(OSError):  # the server tries again at its end
            remove_tree(folder)


def _make_folder(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(mode=0o700)
    for name, content in files.items():  # the names are plain paths
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
        path.chmod(0o755)


def _run_in(folder: Path, plan: Plan, cgroup: ReusedMemoryCpuCgroup, control: int, began: float) -> PlanOutcome:
    cgroup.start_request((plan.limits.memory_mb + plan.limits.disk_mb) << 20)  # files in memory count, too
    monitor = ProcessMonitor(plan.limits, folder, cgroup)
    started: StartedProgram | None = None
    message = ""
    with contextlib.ExitStack() as stack:
        streams = _ProgramStreams(plan.stdin, plan.check, plan.limits.output_bytes)
        stack.callback(streams.close)
        try:
            for number, fds in enumerate(streams.child_fds):
                started = start_isolated_program(plan, number, fds, folder, cgroup)
                monitor.leaders.append(started.pid)
                if started.fork_listener is not None:
                    stack.callback(os.close, started.fork_listener)
                    monitor.listeners.append(started.fork_listener)
            streams.close_child_fds()
            first = os.pidfd_open(monitor.leaders[0])
            stack.callback(os.close, first)
            _wait(monitor, streams, first, control, began + compute_wall_limit_s(plan.limits.cpu_s))
        except (StartError, OSError) as error:
            monitor.limit, message = "start", str(error)
        has_ended = monitor.kill_all_and_wait()
        for reader in streams.reader_fds:
            streams.read_available(reader)
        if streams.is_full:  # since the last look, by a program that has ended
            monitor.limit = monitor.limit or "output"
        if not monitor.limit and shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
            monitor.limit, message = "start", "the disk of the programs' folders is full"
    return PlanOutcome(
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
        layers=started.layers if started else [],
        missing=started.missing if started else {},
        has_live_processes=not has_ended,
        files=_read_files(folder, plan),
    )


def _wait(monitor: ProcessMonitor, streams: _ProgramStreams, first: int, control: int, deadline: float) -> None:
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
                monitor.allow_next_fork_or_record_limit(fd)
            elif fd in monitor.listeners or not streams.read_available(fd):
                poll.unregister(fd)
        if time.monotonic() >= due:
            monitor.measure_and_record_exceeded_limit(is_output_full=streams.is_full)
            due = time.monotonic() + INTERVAL_S
        if time.monotonic() > deadline:
            monitor.limit = monitor.limit or "wall"


def _read_files(folder: Path, plan: Plan) -> dict[str, str]:
    """Return what a program left under the wanted names: regular files, not through links, as base64."""
    contents: dict[str, str] = {}
    left = plan.limits.disk_mb << 20
    for name in plan.fetch:
        with contextlib.suppress(OSError):
            content = read_bytes(folder / name, left)
            contents[name] = base64.b64encode(content).decode()
            left -= len(content)
    return contents


class _ProgramStreams:
    """What the programs get as their descriptors (`child_fds`, by program), and what is read of them (`reader_fds`).

    A program gets input, output and error output. With a check the first program is the checker: it also gets the
    socket to the program under test (3), the pipe for its verdict (4), which it alone holds, and what it has to check
    (5). The program under test gets 3 alone.
    """

    def __init__(self, stdin: str, check: Mapping[str, Any] | None, max_output: int) -> None:
        self._max_output = max_output
        self._received: dict[int, bytearray] = {}
        self._nonce = os.urandom(16).hex()
        self.child_fds: list[list[int]] = []
        self.is_full = False
        if check is None:
            self._add_program(stdin)
        else:
            checker, program = (end.detach() for end in socket.socketpair())
            tests = _open_content(json.dumps({**check, "nonce": self._nonce}).encode())
            self._add_program("", checker, self._open_pipe(), tests)
            self._add_program("", program)

    def _add_program(self, stdin: str, *more: int) -> None:
        content = _open_content(stdin.encode("utf-8", "surrogatepass"))
        self.child_fds.append([content, self._open_pipe(), self._open_pipe(), *more])

    def _open_pipe(self) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        self._received[reader] = bytearray()
        return writer

    @property
    def reader_fds(self) -> list[int]:
        return list(self._received)

    def close(self) -> None:
        self.close_child_fds()
        for fd in self.reader_fds:
            os.close(fd)

    def close_child_fds(self) -> None:
        for fds in self.child_fds:
            while fds:
                os.close(fds.pop())

    def read_available(self, fd: int) -> bool:
        """Read what has come, and keep as much as the limit allows; return False when the stream has ended."""
        content = self._received[fd]
        try:
            while chunk := os.read(fd, _CHUNK):
                content += chunk
                if len(content) > self._max_output:
                    del content[self._max_output :]
                    self.is_full = True
                    return True
        except BlockingIOError:
            return True
        return False

    def outputs(self, program: int) -> tuple[str, str]:
        first = 2 * program + (len(self.child_fds) > 1)
        stdout, stderr = (self._received[fd].decode("utf-8", "replace") for fd in self.reader_fds[first : first + 2])
        return stdout, stderr

    def read_checker_verdict(self) -> str:
        """Return the checker's line behind the number that was drawn for it, or nothing; no program has this number."""
        line = self._received[self.reader_fds[0]].decode("utf-8", "replace")
        nonce, _, verdict = line.partition(" ")
        return verdict if nonce == self._nonce else ""


def _open_content(content: bytes) -> int:
    """Return a descriptor from which `content` can be read, and that cannot be written to."""
    file = os.memfd_create("input")
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
