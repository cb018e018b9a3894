"""Two hosts of scripts/cluster-hosts.sh, as tests of clusters see them: by ssh, and by snapshots."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from enginebox import CHECKOUT, Result

SCRIPT = CHECKOUT / "scripts/cluster-hosts.sh"
LAB = Path(os.environ.get("CLUSTER_HOSTS_DIR", "/var/lib/rlbox-hosts"))
GATE = os.environ.get("CLUSTER_HOSTS_NET", "10.234.9") + ".1"  # this machine, as the hosts reach it
ENGINES = os.environ.get("CLUSTER_HOSTS_ENGINES", "").split()
NODES = ("node0", "node1")
DISK = "/srv/train"
# What an engine, a kernel and an sshd of a host write by themselves is not looked at.
LOOK = r"""
docker ps --all --format '{{.Names}}'; docker volume ls --quiet; docker network ls --format '{{.Name}}' | sort
find /srv /srv/train /root /tmp /var/tmp -xdev -printf '%p %m %u\n' | sort
ls -A /run /dev/shm | grep -vx containerd  # an older engine's own, once it had a container
ss -Hltn | awk '{print $4}' | sort
nft list ruleset | grep rlbox; iptables-save | grep rlbox
ip route; ip -o link | sed -E 's/^[0-9]+: //; s/[:@].*//'
"""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts, up; called, it is the command line on this machine, whose ssh knows them; `own` is its environment."""

    project: Path
    own: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *words: str, **env: str) -> Result:
        argv, own = self.argv(*words), self.env(**env)
        done = subprocess.run(argv, env=own, cwd=self.project, capture_output=True, text=True, timeout=600)
        return Result(code=done.returncode, out=done.stdout, err=done.stderr)

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "rlbox", *words]

    def env(self, **more: str) -> dict[str, str]:
        path = f"{LAB / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT), **self.own, **more}

    def on(self, host: str, command: str, *, code: int = 0) -> str:
        """Run a line of shell on a host over ssh, and return what it printed."""
        done = subprocess.run([LAB / "bin/ssh", host, command], capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return done.stdout

    def look(self) -> dict[str, list[str]]:
        """Return all that a cluster could leave on the hosts."""
        return {host: self.on(host, f"{LOOK}\ntrue").splitlines() for host in NODES}

    def until(self, before: dict[str, list[str]]) -> None:
        """Wait until the hosts are as they were: what a call began is undone by each node itself."""
        end = time.monotonic() + 300
        while (now := self.look()) != before:
            assert time.monotonic() < end, now
            time.sleep(0.5)


def script(*words: str, **env: str) -> str:
    """Call the script of the hosts."""
    done = subprocess.run([SCRIPT, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def started(count: int, **env: str) -> Iterator[None]:
    """Start hosts for this process, once those are ended that a killed one left; end them with all that is theirs."""
    if subprocess.run(["losetup", "--find"], capture_output=True).returncode:
        pytest.skip("this machine has no loop device")
    found = script("status").splitlines()
    if found and (all(line.endswith(" off") for line in found) or left_behind(LAB / "for")):
        script("down")
        found = []
    assert not found, "there are hosts already: scripts/cluster-hosts.sh down"
    try:
        script("up", str(count), CLUSTER_HOSTS_FOR=str(os.getpid()), **env)
        yield
    finally:
        script("down")


def left_behind(owner: Path) -> bool:
    """Return whether a file names a process that has ended."""
    return owner.exists() and not Path("/proc", owner.read_text().strip()).exists()


@contextmanager
def hosts_up(project: Path, **own: str) -> Iterator[Hosts]:
    """Start two hosts, and end them."""
    with started(2, CLUSTER_HOSTS_DISK="4G"):
        yield Hosts(project=project, own=own)


def wire_bytes() -> int:
    """Return how many bytes this machine has sent to the hosts; what they send each other is none of it."""
    bridge = f"rlh{os.environ.get('CLUSTER_HOSTS_SET', '')}-br"
    return int(Path(f"/sys/class/net/{bridge}/statistics/tx_bytes").read_text())


def findings(result: Result) -> list[dict[str, str]]:
    """Return what doctor found, but notes."""
    return [one for one in json.loads(result.out)["findings"] if one["level"] != "note"]


def ids(result: Result) -> dict[str, list[str]]:
    """Return the ids of what doctor found, by node."""
    found: dict[str, list[str]] = {}
    for one in findings(result):
        found.setdefault(one["where"].partition(":")[0], []).append(one["id"])
    return {node: sorted(rows) for node, rows in found.items()}


def until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def cut(process: subprocess.Popen[str]) -> None:
    """End the connection of a command to the head, as a network that fails does."""
    texts = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/children")]
    for pid in " ".join(texts).split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a short call that has ended since
            if b"\0node0\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
