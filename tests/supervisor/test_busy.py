"""A machine that others have, a limit, a slow disk: limits last longer, each has its name, and faults keep theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervised import SERVER, Bench, free_port, python, service

from rlbox.job.plan import ServicePlan

BURN = """
import hashlib, signal, threading
signal.alarm(120)
block = bytes(1 << 20)
def burn():
    while True:
        hashlib.sha256(block)  # which leaves the interpreter to the other threads
for _ in range(4):
    threading.Thread(target=burn, daemon=True).start()
signal.pause()
"""
WORK = "import time\nuntil = time.process_time() + {seconds}\nwhile time.process_time() < until: pass\n"
CORE = str(min(os.sched_getaffinity(0)))
PINNED = ("taskset", "-c", CORE)

pytestmark = [
    pytest.mark.slow,  # asserts time on a busy core, so it belongs to `make nightly ARGS=slow`
    pytest.mark.skipif(not shutil.which("taskset"), reason="this machine has no taskset"),
]


@pytest.fixture
def burner() -> Iterator[int]:
    """Another who wants the one core that the stage may use, with four threads; it ends by itself, too."""
    process = subprocess.Popen([*PINNED, sys.executable, "-c", BURN])
    yield process.pid
    process.kill()
    process.wait()


def starting(port: int, seconds: float, *, start_s: float) -> ServicePlan:
    """A service that computes for so long before it listens."""
    argv = (*PINNED, *python(WORK.format(seconds=seconds) + SERVER, str(port)))
    return service("vllm", port, argv, start_s=start_s)


def stage(bench: Bench, plan: ServicePlan, **limits: Any) -> None:
    bench.stage("serve", python("print('asked')"), services=(plan,), **limits)


@pytest.mark.usefixtures("burner")
def test_a_start_that_gets_a_fifth_of_a_core_is_waited_for(bench: Bench) -> None:
    """It takes longer than its limit by the clock on the wall."""
    stage(bench, starting(free_port(), 2.0, start_s=6.0))
    assert bench.run() == 0, bench.cause()


@pytest.mark.usefixtures("burner")
@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (lambda port: service("vllm", port, python("import time; time.sleep(600)"), start_s=6.0), "ready"),
        (lambda port: service("vllm", port, python("raise SystemExit('no model at /nowhere')")), "service"),
        (lambda port: service("vllm", port, ("/nowhere/vllm",)), "program"),
    ],
)
def test_a_fault_stays_what_it_is(bench: Bench, plan: Any, kind: str) -> None:
    """One that waits for something else than a core is late by its own doing, and one that ends has ended."""
    stage(bench, plan(free_port()))
    bench.run()
    assert bench.cause().kind == kind


@pytest.mark.usefixtures("burner")
def test_a_hang_is_found_in_time(bench: Bench) -> None:
    bench.stage("train", python("import time; print('step 1', flush=True); time.sleep(600)"), silence_s=8.0)
    assert bench.run() == 7
    assert bench.cause().kind == "silence"


READ = """
import os, sys, time
with open(sys.argv[2], "rb", buffering=0) as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more than is asked for
    while file.read(1 << 17):
        time.sleep({pause})
"""


@pytest.fixture
def weights(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Four million bytes on a disk, or as many as the test asks for, none of them in memory."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(1 << 16) * (getattr(request, "param", 4 << 20) >> 16))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def loading(path: Path, port: int, after: str = SERVER, *, pause: float = 0.0, start_s: float = 3.0) -> ServicePlan:
    """A service that reads a file, 130 kB at a time, before it does anything else."""
    argv = python(READ.format(pause=pause) + after, str(port), str(path))
    return service("vllm", port, argv, start_s=start_s)


def test_a_start_that_reads_is_waited_for(bench: Bench, weights: Path) -> None:
    """32 pieces a fifth of a second apart take twice what the start may."""
    stage(bench, loading(weights, free_port(), pause=0.2))
    assert bench.run() == 0, bench.cause()


def test_one_that_read_and_then_hangs_is_found(bench: Bench, weights: Path) -> None:
    stage(bench, loading(weights, free_port(), "import threading; threading.Event().wait()", pause=0.02))
    assert bench.run() == 7
    cause = bench.cause()
    assert cause.kind == "ready"
    assert cause.what.startswith("service vllm was not ready after ")
