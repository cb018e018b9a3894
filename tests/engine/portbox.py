"""Runs in place on a network of their own, and a stranger on another that a cable joins to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from enginebox import CHECKOUT, Box, unsized, wait_until

HOST, STRANGER = "10.231.88.1", "10.231.88.2"
TRAINERS = Path(__file__).parent / "trainers"
_HOLD = ("unshare", "--net", "--mount", "sh", "-ec")
# Ray's folder is its own as well: a head that another run left there is none to connect to
_HELD = "mkdir -p /tmp/ray; mount -t tmpfs none /tmp/ray; echo made; exec sleep infinity"


@dataclass(frozen=True, kw_only=True)
class Networks:
    """Two networks, by the process that holds each."""

    run: int
    stranger: int

    @staticmethod
    def enter(pid: int) -> list[str]:
        """Return the words in front of a command that is to be on the network of a process."""
        return ["nsenter", f"--target={pid}", "--net", "--mount", "--wd=.", "--"]

    def processes(self) -> list[int]:
        """Return who else is on the run's network."""
        own = os.stat(f"/proc/{self.run}/ns/net").st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*/ns/net"):
            with contextlib.suppress(OSError):
                if path.stat().st_ino == own:
                    found.append(int(path.parts[2]))
        return sorted({*found} - {self.run})


@contextlib.contextmanager
def networks() -> Iterator[Networks]:
    """Yield two networks that a cable joins; whatever is left on the run's is ended."""
    holders = [subprocess.Popen([*_HOLD, _HELD], stdout=subprocess.PIPE, start_new_session=True) for _ in range(2)]
    try:
        for holder in holders:
            assert holder.stdout
            assert holder.stdout.readline() == b"made\n"
        made = Networks(run=holders[0].pid, stranger=holders[1].pid)
        _ip("link", "add", "cable0", "netns", str(made.run), "type", "veth", "peer", "name", "cable1", "netns",
            str(made.stranger))  # fmt: skip
        for pid, link, address, other in ((made.run, 0, HOST, STRANGER), (made.stranger, 1, STRANGER, HOST)):
            _ip("address", "add", f"{address}/30", "dev", f"cable{link}", within=pid)
            for name in ("lo", f"cable{link}"):
                _ip("link", "set", name, "up", within=pid)
            _ip("route", "add", "default", "via", other, within=pid)  # Ray takes the address that leads out
        yield made
        for pid in made.processes():
            os.kill(pid, signal.SIGKILL)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            if holder.stdout:
                holder.stdout.close()


def _ip(*words: str, within: int = 0) -> None:
    done = subprocess.run([*(Networks.enter(within) if within else []), "ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def missing() -> str:
    """Return why there can be no such networks here; empty when there can."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        return "network namespaces need root, iproute2 and util-linux"
    return ""


@dataclass(frozen=True, kw_only=True)
class BoxOn(Box):
    """A project folder and a data disk, and command lines on the network of a process."""

    pid: int

    def argv(self, *words: str) -> list[str]:
        return [*Networks.enter(self.pid), *super().argv(*words)]

    def lay_job(self, name: str) -> Path:
        """Copy a shipped job into the project, with one more folder that its programs import from; return that."""
        text = unsized((CHECKOUT / f"jobs/{name}.toml").read_text())
        own = 'PYTHONPATH = "{job}"'
        assert text.count(own) == 1
        self.job(name, text.replace(own, 'PYTHONPATH = "{job}:{data}/stack"'))
        shutil.copytree(CHECKOUT / f"jobs/{name}", self.project / f"jobs/{name}")
        return self.data / "stack"

    def log(self, stage: str) -> str:
        """Return what a stage of the one run has said."""
        return "".join(path.read_text() for path in (self.data / "runs").glob(f"*/stages/*-{stage}/stage.log"))


def lay(folder: Path, **programs: str) -> None:
    """Put stand-ins into a folder: name, with the path that it is to have; `standin` comes with them."""
    for name, path in {"standin": "standin.py", **programs}.items():
        goal = folder / path
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TRAINERS / f"{name}.py", goal)


def wait_for_stand_in(box: BoxOn, process: subprocess.Popen[str], stage: str) -> str:
    """Wait until the stand-in says that all of it listens; return its log, or fail with what the run said."""
    wait_until(lambda: process.poll() is not None or "[stand-in] up" in box.log(stage), "the stand-in", 300)
    assert process.poll() is None, process.communicate()[1]
    return box.log(stage)
