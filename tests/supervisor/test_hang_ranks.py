"""Ranks that wait for each other, as real processes: their environment, what they do, a RAS service of their own."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import pytest
from fakes import h200

from rlbox.hang.ranks import LIMIT_S, Deadlock, RankMonitor, find_rank_processes_else_gpu_processes
from rlbox.system.counters import ActivitySample, probe_machine_and_process_activity

WAITS = "def init_process_group(): print(flush=True); time.sleep(600)\ninit_process_group()"
SLEEPS = "def load_batch(): print(flush=True); time.sleep(600)\nload_batch()"
RETRIES = "print(flush=True)\nwhile True: time.sleep(0.1)"
ASKS = "s = socket.create_connection(('127.0.0.1', int(os.environ['PORT'])))\nprint(flush=True); s.recv(1)"
NO_END_OF_SLEEP = "Python before 3.11 does not tell the kernel when a sleep ends"
COMPUTES = "print(flush=True)\nwhile True: pass"
SPINS = """
def serve():
    while True:
        stream = server.accept()[0].makefile("rwb")
        for answer in ("SERVER PROTOCOL 2", "OK", REPORT):
            stream.readline()
            stream.write(f"{answer}\\n".encode())
            stream.flush()
        stream.close()
REPORT = f'''#0-0 (220914fd712ac85e) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 12 -- GPU 0 managed by process {os.getpid()} on node 192.0.2.2
  Rank 1 has launched up to operation 11 -- GPU 1 managed by process {os.environ["OTHER"]} on node 192.0.2.2
'''
server = socket.create_server(("127.0.0.1", int(os.environ["NCCL_RAS_ADDR"].split(":")[1])))
threading.Thread(target=serve, daemon=True).start()
def synchronize():
    print(flush=True)
    while True: pass
synchronize()
"""
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a rank, waits until it stands where it will, and returns its process id."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(rank: int, world: int, program: str, **environment: str) -> int:
        places = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        code = f"import os, socket, threading, time\n{program}"
        process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **places, **environment}, stdout=-1)
        started.append(process)
        assert process.stdout
        process.stdout.readline()
        return process.pid

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def watched(
    pids: Iterable[int], probe: Callable[[Iterable[int]], ActivitySample] = probe_machine_and_process_activity
) -> Deadlock | None:
    """Look for half a minute of a clock that is ten times as fast; return what was a deadlock for long enough."""
    names = dict.fromkeys(pids, "python")
    watch = RankMonitor(lambda: names, (), probe)
    for now_s in range(4, 34, 2):
        deadlock, lasted_s = watch.probe_deadlock_if_due(now_s, 0.0)
        if lasted_s >= LIMIT_S:
            return deadlock
        time.sleep(0.2)
    return None


def spinning(pid: int) -> Callable[[Iterable[int]], ActivitySample]:
    """Return a probe on a machine whose GPU is busy for a process without touching its memory."""
    return lambda pids: dataclasses.replace(probe_machine_and_process_activity(pids), gpus=(h200(121, (pid, 100, 0)),))


def test_a_rank_that_never_came(start: Start) -> None:
    found = watched([start(0, 3, WAITS), start(1, 3, SLEEPS)])
    assert found
    assert found.description == (
        "rank 2 of 3 never started, or ended; ranks 0, 1 wait for it: rank 0 in init_process_group (<string>:2)"
    )


def test_who_waits_for_no_rank_is_let_alone(start: Start) -> None:
    assert watched([start(0, 3, SLEEPS), start(1, 3, RETRIES)]) is None


def test_a_rank_that_is_asleep(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    late = start(1, 2, SLEEPS)
    early = start(0, 2, SPINS, NCCL_RAS_ADDR=address, OTHER=str(late))
    found = watched([late, early], spinning(early))
    assert found
    assert (found.absent_pids, found.description) == ({late}, "rank 0 waits in AllReduce 12, not called by rank 1")


def test_a_rank_that_waits_for_somebody_else(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as judge:  # which is of no run
        late, early = start(1, 2, ASKS, PORT=str(judge.getsockname()[1])), start(0, 2, COMPUTES)
        assert watched([late, early], spinning(early)) is None


@pytest.mark.slow  # on a busy machine the helper gets too little of a core to be seen
def test_a_helper_that_works_is_work(start: Start) -> None:
    early, late = start(0, 2, COMPUTES), start(1, 2, SLEEPS)
    helper = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert watched([early, late, helper.pid], spinning(early)) is None
    finally:
        helper.kill()
        helper.wait()


def test_children_that_inherit_a_rank_are_none(start: Start) -> None:
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    pid = start(
        0, 1, f"import subprocess, sys\nchild = subprocess.Popen({child})\nprint(child.pid, flush=True)\n{SLEEPS}"
    )
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(text) for text in file.read().split()]
    try:
        assert [member.pid for member in find_rank_processes_else_gpu_processes([pid, *children])] == [pid]
    finally:
        os.kill(children[0], 9)


@pytest.mark.slow  # in real time
@pytest.mark.skipif(sys.version_info < (3, 11), reason=NO_END_OF_SLEEP)
def test_a_rank_that_asks_again_later_is_no_deadlock(start: Start) -> None:
    early = start(0, 2, COMPUTES)
    names = {early: "python", start(1, 2, "print(flush=True)\ntime.sleep(30)\nwhile True: pass"): "python"}
    watch = RankMonitor(lambda: names, (), spinning(early))
    began = time.monotonic()
    while (now_s := time.monotonic() - began) < 36:
        assert watch.probe_deadlock_if_due(now_s + 4, 0.0).duration_s < LIMIT_S
        time.sleep(0.2)
