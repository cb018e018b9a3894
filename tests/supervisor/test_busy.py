"""A machine that others have, a limit, a slow disk: limits last longer, each has its name, and faults keep theirs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from following import Follow
from launched import Site
from supervised import SERVER, Bench, free_port, python, service

from rlbox.job.plan import ServicePlan
from rlbox.record.resources import RESOURCES_FILE
from rlbox.system.limits import find_own_cgroups

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


def group_of(kind: str, second: dict[str, str], first: dict[str, str]) -> Path:
    """Make a control group with these settings, as version 2 and as version 1 call them."""
    for version, base in find_own_cgroups((kind, "")):
        made = base / f"rlbox-test-{os.getpid()}"
        try:
            made.mkdir()
            for name, value in (first if version else second).items():
                (made / name).write_text(value)
        except OSError:
            if made.is_dir():
                made.rmdir()
            continue
        return made
    return pytest.skip("this machine lets nobody make a control group")


@pytest.fixture
def limited() -> Iterator[Path]:
    """A group that has a tenth of a core, as `docker run --cpus 0.1` gives it, whatever else the machine does."""
    times = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000"}
    made = group_of("cpu", {"cpu.max": "10000 100000"}, times)
    yield made
    made.rmdir()


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[Path]:
    """A group that has half a megabyte a second of what is read from the disk of the test's folder."""
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    first = {"blkio.throttle.read_bps_device": f"{number} 524288"}
    made = group_of("blkio", {"io.max": f"{number} rbps=524288"}, first)
    yield made
    made.rmdir()


def slow_job(site: Site, program: str, *words: object, prefix: tuple[str, ...] = ()) -> None:
    """Write a job with a service that works for seconds before it listens, and gets no more time than it may take."""
    port = free_port()
    path = site.folder.path / "program.py"
    path.write_text(program + SERVER)
    argv = [*prefix, sys.executable, str(path), str(port), *map(str, words)]
    site.folder.job("two", SLOW_JOB.format(port=port, argv=json.dumps(argv)))


SLOW_JOB = """
title = "one that needs a server"
target = "mine"
[ports]
http = {port}
[[services]]
name = "vllm"
title = "answers"
command = {argv}
ports = ["http"]
start_s = 7
ready = {{ url = "http://127.0.0.1:{port}" }}
[[stages]]
name = "first"
title = "asks nothing"
command = ["true"]
services = ["vllm"]
limits = {{ total_s = 60, silence_s = 30, stretch = 1 }}
"""
AGAIN = ("run", "two", "--place", "here")


def test_what_took_too_long_is_the_machines(site: Site, follow: Follow, burner: int) -> None:
    slow_job(site, WORK.format(seconds=3.6), prefix=PINNED)
    step = follow(*AGAIN)
    assert step.said.code == 7
    assert site.cause().startswith("this machine is busy: over ")
    assert "then service vllm was not ready after 7 s" in site.cause()
    assert step.text.startswith("end what else works on this machine, or run on another; ")
    os.kill(burner, signal.SIGKILL)
    follow.again(step)


def test_a_limit_of_its_own_is_named_as_one(site: Site, follow: Follow, limited: Path) -> None:
    """It is no busy machine, and what was held back is in the samples."""
    site.groups = [limited]
    slow_job(site, WORK.format(seconds=0.9))
    step = follow(*AGAIN)
    assert step.said.code == 7
    assert site.cause().startswith("the container's own CPU limit (0.1 cores: --cpus, or a pod's) held the stage's ")
    assert "; then service vllm was not ready after " in site.cause()
    assert step.text.startswith("give the container more cores: run.cpus of the target, ")
    rows = [json.loads(line) for line in (site.run_dir() / RESOURCES_FILE).read_text().splitlines()]
    assert max(row["held_pct"] for row in rows) > 50
    site.groups = []
    follow.again(step)


@pytest.mark.parametrize("weights", [8 << 20], indirect=True)
def test_a_slow_disk_is_named(site: Site, follow: Follow, weights: Path, slow_disk: Path) -> None:
    site.groups = [slow_disk]
    slow_job(site, READ.format(pause=0), weights)
    step = follow(*AGAIN)
    assert step.said.code == 7
    assert site.cause().startswith("this machine's disk is busy or slow: over "), site.cause()
    assert step.text.startswith("end what else uses that disk, or copy what is read to a faster one; ")
    site.groups = []
    follow.again(step)
