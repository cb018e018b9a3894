"""A machine that others have: limits last longer, what took too long has its name, and real faults keep theirs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from supervised import SERVER, Bench, free_port, python, service

from rlbox.job.plan import ServicePlan

BURNERS = 4
BURN = "import signal; signal.alarm(120)\nwhile True: pass"
WORK = "import time\nuntil = time.process_time() + {seconds}\nwhile time.process_time() < until: pass\n"
CORE = str(min(os.sched_getaffinity(0)))
PINNED = ("taskset", "-c", CORE)

pytestmark = pytest.mark.skipif(not shutil.which("taskset"), reason="this machine has no taskset")


@pytest.fixture
def burners() -> Iterator[list[int]]:
    """Others who want the one core that the stage may use; they end by themselves, too."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(BURNERS):
            process = subprocess.Popen([*PINNED, sys.executable, "-c", BURN])
            stack.callback(process.wait)
            stack.callback(process.kill)
            found.append(process.pid)
        yield found


def starting(port: int, seconds: float, *, start_s: float) -> ServicePlan:
    """A service that computes for so long before it listens."""
    argv = (*PINNED, *python(WORK.format(seconds=seconds) + SERVER, str(port)))
    return service("vllm", port, argv, start_s=start_s)


def stage(bench: Bench, plan: ServicePlan, **limits: Any) -> None:
    bench.stage("serve", python("print('asked')"), services=(plan,), **limits)


@pytest.mark.usefixtures("burners")
def test_a_start_that_gets_a_fifth_of_a_core_is_waited_for(bench: Bench) -> None:
    """It takes longer than its limit by the clock on the wall."""
    stage(bench, starting(free_port(), 2.0, start_s=6.0))
    assert bench.run() == 0, bench.cause()


def test_what_took_too_long_is_the_machines(bench: Bench, burners: list[int]) -> None:
    stage(bench, starting(free_port(), 600.0, start_s=8.0), stretch=1.0)
    assert bench.run() == 7
    cause = bench.cause()
    assert cause.kind == "busy"
    assert cause.what.startswith("this machine is busy: over ")
    assert any(f"(pid {pid})" in cause.what for pid in burners), cause.what
    assert "then service vllm was not ready after 8 s" in cause.what
    assert cause.next_step.startswith("end what else works on this machine, or run on another; ")


@pytest.mark.usefixtures("burners")
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


@pytest.mark.usefixtures("burners")
def test_a_hang_is_found_in_time(bench: Bench) -> None:
    bench.stage("train", python("import time; print('step 1', flush=True); time.sleep(600)"), silence_s=8.0)
    assert bench.run() == 7
    assert bench.cause().kind == "silence"
