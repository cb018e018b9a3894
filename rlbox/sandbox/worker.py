"""Worker processes: one is forked for each plan, starts its programs behind walls, measures them and reports.

They are forked by a server of their own with a single thread: the HTTP server has many, and a fork of one of those may
inherit a lock that nobody releases.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from rlbox.sandbox.cgroup import PREFIX, ProgramCgroup, remove_cgroups
from rlbox.sandbox.filesystem import mount_private_folders
from rlbox.sandbox.isolation import CHECKER_FOLDER, ProgramFolder, StartError, start_program
from rlbox.sandbox.monitor import INTERVAL_S, ProcessMonitor, list_children
from rlbox.sandbox.plan import (
    CGROUP,
    NAMESPACES,
    IsolationLevel,
    Outcome,
    Plan,
    ProgramExit,
    decode_plan,
    encode_message,
)
from rlbox.sandbox.request import compute_wall_limit
from rlbox.sandbox.scratch import read_files, write_files
from rlbox.sandbox.streams import ProgramStreams
from rlbox.system.libc import set_child_subreaper


def run_plan(plan: Plan, control: int, cgroup_name: str) -> Outcome:
    """Run the programs of a plan until the first one ends; `control` becomes readable when nobody awaits them."""
    began = time.monotonic()
    set_child_subreaper()
    memory_bytes = (plan.limits.memory_mb + plan.limits.disk_mb) << 20  # files in memory count too
    cgroup = ProgramCgroup(cgroup_name, memory_bytes) if CGROUP in plan.layers else None
    try:
        folder, folder_error = _make_folder(plan)
    except OSError as error:
        return Outcome(limit="start", message=f"no folder could be made for a program: {error}")
    streams = ProgramStreams(plan.stdin, plan.check, plan.limits.output)
    monitor = ProcessMonitor(plan.limits, plan.cpu_s, None if folder.is_private else folder.path, cgroup)
    level, message = IsolationLevel.of((), {}), ""
    try:
        for number, fds in enumerate(streams.fds):
            pid, level, listener = start_program(plan, number, fds, folder, cgroup)
            monitor.leaders.append(pid)
            monitor.listeners += [listener] if listener >= 0 else []
        streams.close_fds()
        _wait(monitor, streams, control, began + compute_wall_limit(plan.cpu_s))
    except (StartError, OSError) as error:
        monitor.limit, message = "start", str(error)
    has_ended = monitor.end()
    if cgroup:
        cgroup.remove()
    for reader in streams.readers:
        streams.read(reader)
    files = {} if message else read_files(folder.path, plan.fetch, plan.limits.disk_mb << 20)
    programs = [
        ProgramExit(monitor.exit_codes.get(leader), *streams.outputs(number))
        for number, leader in enumerate(monitor.leaders)
    ]
    return Outcome(
        limit=monitor.limit,
        message=message,
        cpu_s=round(monitor.cpu_s, 4),
        wall_s=round(time.monotonic() - began, 4),
        memory_mb=monitor.peak_bytes >> 20,
        programs=programs,
        verdict=streams.verdict(),
        layers=(NAMESPACES, *level.layers) if folder.is_private else level.layers,
        missing={NAMESPACES: folder_error, **level.missing} if folder_error else level.missing,
        alive=not has_ended,
        files={name: base64.b64encode(content).decode() for name, content in files.items()},
    )


def _make_folder(plan: Plan) -> tuple[ProgramFolder, str]:
    """Make the programs' folder, in memory if possible; return also why it is not, or nothing."""
    scratch, error_text = Path(plan.scratch), ""
    scratch.mkdir(mode=0o700)
    folder = ProgramFolder(path=scratch / "work", is_private=False)
    if NAMESPACES in plan.layers:
        try:
            mount_private_folders(plan.limits.disk_mb, (*plan.readable, CHECKER_FOLDER))
            folder = ProgramFolder(path=Path("/tmp/program"), is_private=True)  # noqa: S108 its own
        except OSError as error:
            error_text = str(error)
    folder.path.mkdir()
    write_files(folder.path, {name: base64.b64decode(content) for name, content in plan.files.items()})
    return folder, error_text


def _wait(monitor: ProcessMonitor, streams: ProgramStreams, control: int, deadline: float) -> None:
    """Wait until the first program has ended or a limit is passed."""
    first = os.pidfd_open(monitor.leaders[0])  # becomes readable when the process ends
    poll = select.poll()
    for fd in (first, control, *streams.readers, *monitor.listeners):
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
            elif fd in monitor.listeners or not streams.read(fd):
                poll.unregister(fd)
        if time.monotonic() >= due:
            monitor.check(output_full=streams.is_full)
            due = time.monotonic() + INTERVAL_S
        if time.monotonic() > deadline:
            monitor.limit = monitor.limit or "wall"


# --------------------------------------------------------------------------------------------------------- fork server


def serve_forks(requests: socket.socket) -> None:
    """Fork a worker for each socket that comes over `requests`, until that closes; then wait for all workers.

    The socket of a worker is closed when the worker has ended and nothing that it started is left.
    """
    gc.freeze()  # the workers share what is loaded now
    set_child_subreaper()
    server = os.getppid()
    workers: dict[int, socket.socket] = {}
    wakeup, signal_end = socket.socketpair()
    for end in (wakeup, signal_end):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(signal_end.fileno(), warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    is_open = True
    while is_open or workers:
        ready = [fd for fd, _ in poll.poll()]
        if wakeup.fileno() in ready:
            wakeup.recv(1 << 12)
            _reap_workers(workers)
        if requests.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                is_open = False
                poll.unregister(requests)
                continue
            connection = socket.socket(fileno=fds[0])
            pid = os.fork()
            if not pid:
                _serve_worker(connection, server, [requests, wakeup, signal_end, *workers.values()])
            workers[pid] = connection


def _reap_workers(workers: dict[int, socket.socket]) -> None:
    """Wait for workers that have ended, end what a killed one left, and close their sockets."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = workers.pop(pid, None)
            if status:
                _end_orphans(workers)
                remove_cgroups(f"*-{pid}")
            if connection:
                connection.close()


def _end_orphans(workers: Iterable[int]) -> None:
    """End what this process has adopted of a worker that was killed."""
    while orphans := set(list_children(os.getpid())) - set(workers):
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)  # a program's group: the workers share this process' own
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _serve_worker(connection: socket.socket, server: int, others: Iterable[socket.socket]) -> None:
    """Answer one plan, and end; status 0: nothing is left of it."""
    has_ended = False
    try:
        for other in others:
            other.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with connection.makefile("rb") as stream:
            line = stream.readline()
        if line:
            outcome = run_plan(decode_plan(line), connection.fileno(), f"{PREFIX}{server}-{os.getpid()}")
            with contextlib.suppress(OSError):
                connection.sendall(encode_message(outcome))
            has_ended = not outcome.alive
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0 if has_ended else 1)  # it is a copy of the fork server
