"""Which process is the odd one out, and how it is said what it waits for."""

from __future__ import annotations

import dataclasses

from rlbox.hang.waits import (
    ProcessWait,
    PythonFrame,
    ThreadWait,
    WaitKind,
    describe_prime_suspect_wait_or_empty,
    describe_wait,
    get_syscall_name_or_number,
    sort_by_suspicion,
)

REDUCE = PythonFrame(
    function="all_reduce", file="/opt/venv/lib/python3.12/site-packages/torch/dist.py", line=9, is_library=True
)
STEP = PythonFrame(function="train_step", file="/job/train.py", line=33)
LOAD = PythonFrame(function="load_batch", file="/job/data.py", line=7)


def wait(
    pid: int, kind: WaitKind, what: str, *, rank: str = "", stack: tuple[PythonFrame, ...] = (), holder: int = 0
) -> ProcessWait:
    thread = ThreadWait(thread=pid, name="python", kind=kind, description=what, holder_pid_or_0=holder)
    return ProcessWait(
        pid=pid,
        name="python",
        role="main",
        rank=rank,
        command_line="python x",
        cpu_cores=0.0,
        threads=(thread,),
        stack=stack,
    )


def test_the_rank_that_is_not_in_the_collective_comes_first() -> None:
    ranks = [wait(10 + n, "futex", "waits", rank=str(n), stack=(REDUCE, STEP)) for n in range(4)]
    odd = wait(12, "pipe", "reads from a pipe", rank="2", stack=(LOAD,))
    driver = wait(3, "child", "waits for a child")
    ordered = sort_by_suspicion([driver, *ranks[:2], odd, ranks[3]])
    assert [process.pid for process in ordered] == [12, 10, 11, 13, 3]


def test_the_only_rank_that_waits_otherwise_comes_first_without_stacks() -> None:
    ranks = [wait(10 + n, "socket", "reads from 10.0.0.1:99", rank=str(n)) for n in range(4)]
    ranks[3] = wait(13, "busy", "computes", rank="3")
    assert sort_by_suspicion(ranks)[0].pid == 13


def test_who_holds_what_others_wait_for_comes_first_with_one_who_waits() -> None:
    holder = wait(7, "sleep", "sleeps")
    waiting = wait(5, "lock", "waits for a flock lock on /data/x, held by pid 7 (python)", holder=7)
    ordered = sort_by_suspicion([waiting, holder])
    assert [process.pid for process in ordered] == [7, 5]
    told = describe_prime_suspect_wait_or_empty(ordered)
    assert told == "pid 7 (python) sleeps; pid 5 (python) waits for a flock lock on /data/x, held by pid 7 (python)"
    assert describe_prime_suspect_wait_or_empty([]) == ""


def test_a_server_that_waits_for_clients_is_not_the_odd_one() -> None:
    server = wait(7, "idle", "waits for a client at port 80")
    client = wait(9, "socket", "reads from 127.0.0.1:80, which is pid 7 (server)", holder=7)
    assert [process.pid for process in sort_by_suspicion([server, client])] == [9, 7]


def test_the_sentence_names_the_collective_and_the_code_that_led_there() -> None:
    inner = PythonFrame(function="ProcessGroup.wait", file="/x/site-packages/torch/c10d.py", line=1, is_library=True)
    process = wait(5, "futex", "waits for a lock or signal", stack=(inner, REDUCE, STEP))
    assert (
        describe_wait(process) == "waits for a lock or signal; in all_reduce (dist.py:9), from train_step (train.py:33)"
    )


def test_a_main_thread_that_waits_for_another_says_what_that_one_does() -> None:
    main = ThreadWait(thread=5, name="python", kind="futex", description="waits for a lock")
    feeder = ThreadWait(thread=6, name="feeder", kind="pipe", description="reads from a pipe")
    process = dataclasses.replace(wait(5, "futex", ""), threads=(main, feeder))
    assert describe_wait(process) == "waits for its thread 6 (feeder), which reads from a pipe"


def test_calls_have_their_kernels_numbers() -> None:
    assert [get_syscall_name_or_number("x86_64", n) for n in (0, 45, 73, 202)] == ["read", "recvfrom", "flock", "futex"]
    assert [get_syscall_name_or_number("aarch64", n) for n in (63, 207, 32, 98)] == [
        "read",
        "recvfrom",
        "flock",
        "futex",
    ]
    assert get_syscall_name_or_number("riscv64", 63) == "call 63"
