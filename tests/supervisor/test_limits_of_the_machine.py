"""Disk full and memory exhausted, with the real kernel (needs root; skipped otherwise)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import Bench, python

ROOT = os.geteuid() == 0
CGROUP_1 = Path("/sys/fs/cgroup/memory")


def test_disk_filled_while_the_stage_runs(tiny_disk: Path) -> None:
    bench = Bench(tiny_disk / "run")
    fill = (
        "import time\n"
        "try:\n  with open('big', 'wb') as f:\n    while True: f.write(b'x' * 4096); f.flush()\n"
        "except OSError: pass\n"
        "for i in range(600): print('Final', i, flush=True); time.sleep(0.05)"
    )
    bench.stage("train", ("sh", "-c", f"exec {sys.executable} -c '{fill.replace(chr(39), chr(34))}'"))
    assert bench.run() == 5
    assert bench.cause().kind == "disk"
    assert bench.state().state == "failed"


def test_disk_full_before_the_start(tiny_disk: Path) -> None:
    bench = Bench(tiny_disk / "run")
    bench.stage("train", ("true",))
    bench.write_plan()
    with open(tiny_disk / "big", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    done = subprocess.run(
        [sys.executable, "-m", "rlbox.supervise", str(bench.run_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert "data disk full" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory group of 600 MiB: a supervisor is a fork of the test process, whose pages it may copy."""
    own = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None)
    if own is None or not os.access(CGROUP_1, os.W_OK):
        pytest.skip("no writable memory group of the first cgroup version")
    folder = CGROUP_1 / own.split(":")[2].lstrip("/") / f"rlbox-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(600 << 20))
    except OSError as error:
        pytest.skip(f"memory groups cannot be made here: {error}")
    yield folder
    folder.rmdir()


@pytest.mark.skipif(not ROOT, reason="memory groups need root")
def test_memory_limit_is_the_cause(bench: Bench, small_memory: Path) -> None:
    # one mapping, for the kernel takes the memory back of a process only while that maps no more, and else ends another
    room = "import mmap\na = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE)"
    bench.stage("train", python(f"{room}\nfor at in range(0, 4 << 30, 4096): a[at] = 1"))
    (small_memory / "tasks").touch()
    before = os.getpid()
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line).split(":")[2]
    (small_memory / "cgroup.procs").write_text(str(before))
    try:
        bench.start()
    finally:
        (CGROUP_1 / own.lstrip("/") / "cgroup.procs").write_text(str(before))
    assert bench.finish()[0] == 1
    assert bench.cause().what == (
        "out of memory: container limit 629.1 MB; then stage train ended with signal 9 (SIGKILL)"
    )
