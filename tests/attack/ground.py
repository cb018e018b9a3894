"""The ground of the attacks: a data disk with runs of every end, a victim beside it, bystanders that must live.

An attempt changes what a workload could have written, types a verb, and is judged by what it must never do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from fakes import CHECKOUT, ON_IMAGE, Folder
from launched import BARE

from rlbox.record.supervisor_file import load_supervisor_info
from rlbox.system.process_table import probe_process
from rlbox.system.safe_files import remove_tree

PATIENCE_S = 60.0
BUG = 3
"""The exit code of what rlbox did not expect."""
JOB = """
title = "two short stages"
target = "mine"
[[stages]]
name = "first"
title = "leaves a proof"
command = ["sh", "-c", "echo step 1; echo done > {run}/proof"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
require = [{ pattern = 'step 1' }]
files = [{ path = "{run}/proof", newer = true }]
[[stages]]
name = "second"
title = "ends as it is told"
command = ["sh", "-c", "echo begun; sh {data}/work"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
require = [{ pattern = 'finished well' }]
"""
WORK = {"passed": "echo finished well", "failed": "echo ValueError: no; exit 3", "dead": "exec sleep 600"}

Tree = Mapping[str, tuple[int, str]]
"""Path below a folder to mode and content; of a link where it leads, of what is no file nothing."""


@dataclass(frozen=True)
class Fell:
    """What an attempt brought about that must not be."""

    what: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt: `plant` changes the disk, `words` are typed then, `check` looks at what was told besides."""

    name: str
    plant: Callable[[Ground], object]
    words: tuple[str, ...]
    check: Callable[[Ground, subprocess.CompletedProcess[bytes]], str] = lambda ground, told: ""


@dataclass(kw_only=True)
class Ground:
    """One data disk with three runs, `passed`, `failed` and `dead`; the last one's supervisor was killed."""

    folder: Path
    runs: dict[str, str] = dataclasses.field(default_factory=dict)
    bystander: int = 0

    @property
    def data(self) -> Path:
        return self.folder / "disk"

    @property
    def victim(self) -> Path:
        """A folder of the host that no verb has any business in."""
        return self.folder / "host"

    def run_dir(self, end: str) -> Path:
        return self.data / "runs" / self.runs[end]

    def env(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
        own = {name: str(self.folder / name) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "HOME")}
        return {**os.environ, **own, "PYTHONPATH": path, "TERM": "xterm", "FORCE_COLOR": ""}

    def type(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Type a verb; raises `subprocess.TimeoutExpired` when it hangs."""
        argv = [sys.executable, "-c", BARE, *words]
        cwd, null, patience = self.folder / "project", subprocess.DEVNULL, PATIENCE_S
        return subprocess.run(argv, env=self.env(), cwd=cwd, stdin=null, capture_output=True, timeout=patience)

    def prepare(self) -> None:
        """Make the project, the victim and the runs, and keep the disk as it is then."""
        folder = Folder(self.folder / "project")
        folder.target("mine", ON_IMAGE)
        folder.lock("mine")
        folder.job("two", JOB)
        self.data.mkdir()
        (self.victim / "below").mkdir(parents=True)
        for name in ("file", "below/file"):
            (self.victim / name).write_text("of the host\n")
        for end, work in WORK.items():
            (self.data / "work").write_text(work)
            known = {path.name for path in (self.data / "runs").glob("*")}
            detach = ("--detach",) if end == "dead" else ()
            said = self.type("run", "two", "--place", "here", "--data", str(self.data), *detach)
            assert said.returncode == {"passed": 0, "failed": 1, "dead": 0}[end], said.stderr.decode()
            (self.runs[end],) = {path.name for path in (self.data / "runs").glob("*")} - known
        self._kill(self.run_dir("dead"))
        (self.data / "work").write_text(WORK["passed"])
        for name in ("disk", "XDG_STATE_HOME"):
            if (self.folder / name).exists():
                shutil.copytree(self.folder / name, self.folder / f"{name}.kept", symlinks=True)

    def restore(self) -> None:
        """Put the disk, and what rlbox keeps beside it, back as they were; the folders stay the same ones."""
        for name in ("disk", "XDG_STATE_HOME"):
            folder, kept = self.folder / name, self.folder / f"{name}.kept"
            for path in folder.iterdir() if folder.exists() else ():
                remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if kept.exists():
                shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)

    def _kill(self, run_dir: Path) -> None:
        """End the dead run as a power cut would: warden and supervisor first, then the stage."""
        until = time.monotonic() + PATIENCE_S
        while not (run_dir / "stages").is_dir() or b"begun" not in b"".join(
            log.read_bytes() for log in run_dir.glob("stages/2-second/*.log")
        ):
            assert time.monotonic() < until
            time.sleep(0.05)
        facts = load_supervisor_info(run_dir)
        assert facts
        for pid in (facts.warden, facts.pid, *sleepers(facts.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def sleepers(supervisor: int) -> list[int]:
    """Return the processes below a supervisor that sleep, as its stage was told to; others here sleep as well."""
    below = psutil.Process(supervisor).children(recursive=True)
    found = [process.pid for process in below if process.name() == "sleep"]
    assert found
    return found


def tree(folder: Path) -> Tree:
    """Return what is in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        is_file = stat.S_ISREG(facts.st_mode)
        text = os.readlink(path) if path.is_symlink() else path.read_bytes().hex() if is_file else ""
        found[str(path.relative_to(folder))] = facts.st_mode, text
    return found


@contextlib.contextmanager
def bystander(ground: Ground) -> Iterator[None]:
    """A process that belongs to nobody's run stands beside the ground."""
    with subprocess.Popen(["sleep", "100000"], start_new_session=True) as process:
        ground.bystander = process.pid
        try:
            yield
        finally:
            process.kill()


def attempt(ground: Ground, one: Attempt) -> Fell | None:
    """Carry out an attempt; return what fell."""
    ground.restore()
    with bystander(ground):
        one.plant(ground)
        return _judge(ground, one)


def _judge(ground: Ground, one: Attempt) -> Fell | None:
    before = tree(ground.victim)
    try:
        told = ground.type(*one.words)
    except subprocess.TimeoutExpired:
        return Fell(f"it hangs for {PATIENCE_S:g} s")
    process = probe_process(ground.bystander)
    if process is None or process.is_zombie:
        return Fell("a process of somebody else was ended")
    if tree(ground.victim) != before:
        return Fell("files outside the data disk were changed")
    if b"Traceback (most recent call last)" in told.stderr or told.returncode < 0 or told.returncode == BUG:
        return Fell(f"it broke: {told.stderr.decode('utf-8', 'replace')[-600:]}")
    if b"\x1b]" in told.stdout + told.stderr:
        return Fell("a control sequence of the workload reached the terminal")
    if problem := one.check(ground, told):
        return Fell(problem)
    return None


def not_passed(end: str) -> Callable[[Ground, subprocess.CompletedProcess[bytes]], str]:
    """Return a check that `runs --json` does not call a run passed."""

    def check(ground: Ground, told: subprocess.CompletedProcess[bytes]) -> str:
        try:
            rows = {row["run"]: row for row in json.loads(told.stdout)["runs"]}
        except (ValueError, KeyError):
            return f"runs --json gives no JSON: {told.stdout[:200]!r} {told.stderr[:400]!r}"
        return (
            "a run that did not pass is told as passed"
            if rows.get(ground.runs[end], {}).get("state") == "passed"
            else ""
        )

    return check
