"""What the engine tests share: a project folder with a data disk, and the docker client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.place import SMALLEST

CHECKOUT = Path(__file__).resolve().parents[2]
TINY = SMALLEST


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one rlbox command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict:
        """The JSON object on stdout."""
        return json.loads(self.out)


@dataclass(frozen=True, kw_only=True)
class Box:
    """A project folder with a data disk, and the command line run in it."""

    project: Path
    data: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *words: str, **env: str) -> Result:
        argv, own = self.argv(*words), self.env(**env)
        done = subprocess.run(argv, env=own, cwd=self.project, capture_output=True, text=True, timeout=3000)
        return Result(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in a session of its own, as a terminal would."""
        return subprocess.Popen(
            self.argv(*words),
            env=self.env(),
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "rlbox", *words]

    def env(self, **more: str) -> dict[str, str]:
        return {**os.environ, "RLBOX_DATA": str(self.data), "PYTHONPATH": str(CHECKOUT), **self.extra, **more}

    def job(self, name: str, text: str) -> None:
        """Write a job file into the project."""
        folder = self.project / "jobs"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.toml").write_text(text)

    def runs(self) -> list[Path]:
        """The run directories, the oldest first."""
        return sorted((self.data / "runs").iterdir(), key=lambda path: path.stat().st_mtime)

    def state(self) -> dict:
        """`run.json` of the latest run."""
        return json.loads((self.runs()[-1] / "run.json").read_text())


def docker(*words: str) -> str:
    """Run the docker client and return what it printed."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def image_id(image: str) -> str:
    """Return the id of an image; empty where the engine has none of this name."""
    ids = ("docker", "image", "inspect", "--format={{.Id}}", image)
    return subprocess.run(ids, capture_output=True, text=True, timeout=120).stdout.strip()


def unsized(job: str) -> str:
    """Return a job's text without what it needs of a machine: its stand-ins need nothing."""
    return re.sub(r"(?ms)^\[fits[\].].*?(?=^\[(?!fits))", "", job)


def containers(data: Path) -> list[str]:
    """Names of all containers, running or not, that have the data disk `data`; those of others do not count."""
    return docker("ps", "--all", f"--filter=volume={data}", "--format={{.Names}}").split()


def wait_until(probe: Callable[[], object], what: str, timeout_s: float = 240) -> None:
    """Wait until `probe` is true; says what it waited for."""
    end = time.monotonic() + timeout_s
    while not probe():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.05)


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Press Ctrl-C and return exit code, as a shell has it, and stderr.

    CPython ends by the signal itself where Ctrl-C came within `exec`, by which dataclasses are made on import.
    """
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    return 128 - process.returncode if process.returncode < 0 else process.returncode, err
