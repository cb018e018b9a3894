"""Which processes doctor takes for what an earlier run left: none that anybody living has started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rlbox.doctor.processes import ProcessInfo, check_live_runs_and_leftovers, list_processes_in_same_container

pytestmark = pytest.mark.allow("processes")
SLEEP = str(shutil.which("sleep"))


def named(name: str) -> list[str]:
    """Return the words of a process that sleeps under another name."""
    return [sys.executable, "-c", f"import os; os.execv({SLEEP!r}, [{name!r}, '60'])"]


def row_of(pid: int) -> ProcessInfo:
    """Return what is told of a process; that this doctor's own test has started it is left out."""
    (found,) = [row for row in list_processes_in_same_container() if row.pid == pid]
    return replace(found, is_doctor=False)


def ids(row: ProcessInfo) -> list[str]:
    return [finding.id for finding in check_live_runs_and_leftovers([row])]


def wait_until_named(pid: int, name: str) -> None:
    end = time.monotonic() + 30
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode()):
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def ending(pid: int) -> Iterator[int]:
    """End a process when the block ends."""
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def orphan(words: list[str], **env: str) -> int:
    """Start a process that loses its parent, and return its number."""
    script = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=2).pid)"
    argv = [sys.executable, "-c", script, *words]
    done = subprocess.run(argv, env={**os.environ, **env}, stdout=subprocess.PIPE, check=True, start_new_session=True)
    return int(done.stdout)


def test_what_a_living_program_has_started_is_not_left_over() -> None:
    """As an engine that somebody's test has started: doctor advised to kill it."""
    child = subprocess.Popen(named("VLLM::EngineCore"))
    with ending(child.pid):
        wait_until_named(child.pid, "VLLM::EngineCore")
        found = row_of(child.pid)
        assert (found.has_living_starter, found.is_orphan, ids(found)) == (True, False, [])
        assert ids(replace(found, has_living_starter=False)) == ["stale-processes"]
    child.wait()


def test_parts_of_a_run_alone_have_lost_what_started_them() -> None:
    """A worker below a raylet whose own parent is gone."""
    words = ["import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()", *named("ray::IDLE")]
    with ending(orphan([sys.executable, "-c", *words, "-m", "vllm.entrypoints"])) as above:
        end = time.monotonic() + 30
        children = Path(f"/proc/{above}/task/{above}/children")
        while not (below := children.read_text().split()) and time.monotonic() < end:
            time.sleep(0.02)
        with ending(int(below[0])) as pid:
            wait_until_named(pid, "ray::IDLE")
            rows = row_of(above), row_of(pid)
            assert (rows[0].is_orphan, rows[1].is_orphan, rows[1].has_living_starter) == (True, False, False)
            assert ids(row_of(pid)) == ["stale-processes"]


@pytest.mark.parametrize("alive", [True, False])
def test_the_mark_of_a_run_says_whose_a_process_is(tmp_path: Path, alive: bool) -> None:
    """Whatever its data disk is, while its supervisor lives, and though it has lost its parent."""
    folder = tmp_path / "other disk/runs/own-1"
    words = ["-m", "rlbox.supervise", str(folder)]
    with ending(orphan(named("raylet"), RLBOX_RUN_DIR=str(folder))) as pid:
        wait_until_named(pid, "raylet")
        with ending(orphan([sys.executable, "-c", "import time; time.sleep(60)", *words])) as supervisor:
            if not alive:
                os.kill(supervisor, signal.SIGKILL)
                end = time.monotonic() + 10
                while any(row.pid == supervisor for row in list_processes_in_same_container()):
                    assert time.monotonic() < end
            found = row_of(pid)
            assert (found.is_orphan, found.is_in_live_run, found.ended_run) == (
                True,
                alive,
                "" if alive else "own-1",
            )
            assert ids(found) == ([] if alive else ["stale-processes"])


def test_processes_with_numbers_of_their_own_are_not_ours() -> None:
    """As of a container that no engine has made: numbers and paths are others there."""
    argv = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", *named("raylet")]
    outer = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 10
        inner: list[str] = []
        while not inner and outer.poll() is None and time.monotonic() < end:
            inner = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        if not inner:
            pytest.skip("this machine does not allow namespaces for a build")
        wait_until_named(int(inner[0]), "raylet")
        assert int(inner[0]) not in {row.pid for row in list_processes_in_same_container()}
    finally:
        outer.kill()
        outer.wait()
