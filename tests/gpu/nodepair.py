"""Containers of a target's image as nodes without an engine: a GPU, an address and an sshd of its own each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NET, BRIDGE, LABEL = "10.234.8", "rlbox-gpu-br", "rlbox.gpu-nodes"
DRIVER = "/usr/local/nvidia"
PROGRAMS = {"sshd": "/usr/sbin/sshd", **{name: shutil.which(name) or name for name in ("ssh", "ssh-keygen", "ip")}}
CARRIED = Path(os.environ.get("SSH_HOME", "/opt/proof/ssh"))
BOOT = """
set -e
mkdir -p /run/sshd ~/.ssh && chmod 700 ~ ~/.ssh && cp /own/key.pub ~/.ssh/authorized_keys
grep -q ^sshd: /etc/passwd || echo sshd:x:129:65534::/run/sshd:/usr/sbin/nologin >>/etc/passwd
cp /own/hosts /etc/hosts
/own/sshd -D -e -f /own/sshd_config -h /own/host_key || exit
"""
# What a node has of its own: listening ports, programs, files of a data disk and of temporary folders.
LOOK = """
cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == "0A" {print $2}' | sort
for one in /proc/[0-9]*; do cat "$one/comm"; done 2>/dev/null | grep -vE '^(cat|sh|bash|sort|grep|awk|sshd)$' | sort
find /data /tmp /dev/shm -mindepth 1 2>/dev/null | sort
"""


def sh(*words: str, check: bool = True) -> str:
    """Carry out one command; return what it wrote."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(words)[:300]}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return done.stdout


@dataclass(kw_only=True)
class Pair:
    """The two nodes of one target, and how rlbox reaches them."""

    target: str
    gpus: Sequence[str]
    folder: Path
    python: str
    torch: str
    names: tuple[str, str] = ("gpunode0", "gpunode1")
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Whether GPUs or the processor are at work."""
        return "gpu" if self.gpus else "cpu"

    def address(self, at: int) -> str:
        """Return a node's address."""
        return f"{NET}.{11 + at}"

    def rlbox(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Return code, answer and what was said of `rlbox cluster`."""
        more = ("--nodes", ",".join(self.names))
        argv = (sys.executable, "-m", "rlbox", "cluster", words[0], self.target, *more, *words[1:])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=400)
        print(f"--- cluster {' '.join(words)[:60]}: {done.returncode}\n{done.stderr[-2500:]}", flush=True)
        with suppress(ValueError):
            return done.returncode, json.loads(done.stdout), done.stderr
        return done.returncode, {}, done.stdout + done.stderr

    def inside(self, at: int, *words: str) -> str:
        """Carry out a command in a node, without ssh and without rlbox."""
        return sh("docker", "exec", "-i", "-e", "NCCL_NVLS_ENABLE=0", self.names[at], *words)

    def look(self) -> list[list[str]]:
        """Return what both nodes have."""
        return [self.inside(at, "sh", "-c", LOOK).splitlines() for at in (0, 1)]


def write_programs(pair: Pair) -> None:
    """Write keys, an sshd and an ssh that know them, below the pair's folder, and have them found."""
    own, home = pair.folder, CARRIED if (CARRIED / "bin/sshd").exists() else None
    if home:
        shutil.copytree(home, own / "ssh")
    (own / "bin").mkdir()
    for name, real in PROGRAMS.items():
        path, at = (own / name, "/own") if name == "sshd" else (own / "bin" / name, str(own))
        program = f"{at}/ssh/bin/{name}" if home else real
        more = f" -F {own}/ssh_config" if name == "ssh" else ""
        path.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={at}/ssh/lib exec {program}{more} "$@"\n')
        path.chmod(0o755)
    os.environ["PATH"] = f"{own}/bin:{os.environ['PATH']}"
    for name in ("key", "host_key"):
        sh(f"{own}/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(own / name))
    path = f"/opt/venv/bin:{DRIVER}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    (own / "sshd_config").write_text(
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
        f"UseDNS no\nPidFile none\nSetEnv PATH={path} LD_LIBRARY_PATH={DRIVER}/lib64\n"
    )
    (own / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{pair.address(at)} {name}\n" for at, name in enumerate(pair.names))
    )
    key = " ".join((own / "host_key.pub").read_text().split()[:2])
    (own / "known_hosts").write_text(
        "".join(f"{name},{pair.address(at)} {key}\n" for at, name in enumerate(pair.names))
    )
    hosts = "".join(f"Host {name}\n  HostName {pair.address(at)}\n" for at, name in enumerate(pair.names))
    (own / "ssh_config").write_text(
        f"{hosts}Match all\n  User root\n  IdentityFile {own}/key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {own}/known_hosts\n"
    )


@contextmanager
def nodes(pair: Pair, image: str) -> Iterator[None]:
    """Start both containers, each on a cable of its own to one bridge; what was started is ended."""
    write_programs(pair)
    sh("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        sh("ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE)
        sh("ip", "link", "set", BRIDGE, "up")
        forward("-I")
        for at, name in enumerate(pair.names):
            start(pair, image, at, name)
        for name in pair.names:
            until(
                lambda name=name: (
                    not subprocess.run([f"{pair.folder}/bin/ssh", "-oBatchMode=yes", name, "true"]).returncode
                )
            )
        yield
    finally:
        for name in pair.names:
            subprocess.run(["docker", "logs", "--tail", "5", name])
            subprocess.run(["docker", "rm", "-f", name], stdout=subprocess.DEVNULL)
        forward("-D")
        sh("ip", "link", "del", BRIDGE)


def forward(way: str) -> None:
    """Let packets from cable to cable through where an engine filters bridges, or no longer."""
    if shutil.which("iptables"):
        sh("iptables", "-w", way, "FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT", check=way == "-I")


def start(pair: Pair, image: str, at: int, name: str) -> None:
    """Start one node: no engine, no network but its cable, one GPU."""
    data = pair.folder / f"data{at}"
    data.mkdir(mode=0o700)
    named = ("--name", name, "--hostname", name, "--label", LABEL)
    device = ("--device", f"nvidia.com/gpu={pair.gpus[at]}") if pair.gpus else ()
    mounts = ("-v", f"{pair.folder}:/own:ro", "-v", f"{data}:/data")
    alone = ("--network", "none", "--user", "0", "--shm-size", "4g", "--entrypoint", "/bin/sh")
    sh("docker", "run", "-d", *named, *device, *mounts, *alone, image, "-c", BOOT)
    pid = sh("docker", "inspect", "-f", "{{.State.Pid}}", name).strip()
    sh("ip", "link", "add", f"rlgpu{at}", "type", "veth", "peer", "name", "eth0", "netns", pid)
    sh("ip", "link", "set", f"rlgpu{at}", "master", BRIDGE, "up")
    address, way = f"{pair.address(at)}/24", f"{NET}.1"
    for line in (f"addr add {address} dev eth0", "link set lo up", "link set eth0 up", f"route add default via {way}"):
        sh("nsenter", "-t", pid, "-n", "ip", *line.split())


def until(ready: Callable[[], bool], limit_s: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end:
            raise SystemExit("it has not come in time")
        time.sleep(0.3)
