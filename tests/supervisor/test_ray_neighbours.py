"""Two Rays of one user in one folder: what is removed after one of them leaves the other at work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import Bench, free_port, wait_for

from rlbox.job.plan import RayPlan, load_run_plan
from rlbox.supervise.ray_jobs import RaySessionCleaner

TASK = """
import sys

import ray

ray.init(sys.argv[1])


@ray.remote
def double(number):
    return 2 * number


print("sum", sum(ray.get([double.remote(number) for number in range(9)])))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has Ray."""
    home = tmp_path_factory.mktemp("ray")
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", str(home)], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(home), "ray==2.60.0"], check=True)
    return home / "bin/python"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose sockets have short names."""
    found = Path(tempfile.mkdtemp(prefix="rn-", dir="/tmp"))
    yield found
    shutil.rmtree(found, ignore_errors=True)


def head(python: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a head as a service does, in the process that is known."""
    words = ["--head", "--block", f"--temp-dir={folder}", f"--port={port}", "--include-dashboard=false", "--num-cpus=1"]
    more = ["--node-ip-address=127.0.0.1", "--disable-usage-stats", "--object-store-memory=80000000"]
    argv = [str(python), "-m", "ray.scripts.scripts", "start", *words, *more]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def sessions(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("session_2*"))


@pytest.mark.slow
def test_a_head_that_others_started_meanwhile_goes_on(bench: Bench, python: Path, folder: Path) -> None:
    ray = RayPlan(dashboard="http://127.0.0.1:1", service="", temp_dir=str(folder), submission_id="s")
    bench.stage("train", ("true",), ray=ray)
    bench.write_plan()
    heads = RaySessionCleaner(load_run_plan(json.loads((bench.run_dir / "plan.json").read_bytes())))
    ports = free_port(), free_port()
    started = []
    try:
        for count, port in enumerate(ports, 1):
            started.append(head(python, folder, port))
            wait_for(lambda count=count: len(list(folder.glob("session_2*/sockets/raylet"))) == count)
        own, other = started
        assert {name.rpartition("_")[2] for name in sessions(folder)} == {str(own.pid), str(other.pid)}
        os.killpg(own.pid, signal.SIGTERM)
        own.wait(60)
        heads.clean({own.pid})
        assert [name.rpartition("_")[2] for name in sessions(folder)] == [str(other.pid)]
        done = subprocess.run(
            [python, "-c", TASK, f"127.0.0.1:{ports[1]}"], capture_output=True, text=True, timeout=120
        )
        assert "sum 72" in done.stdout, done.stderr
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)
