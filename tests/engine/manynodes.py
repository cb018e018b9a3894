"""Many hosts on one machine, each with an sshd of default limits and no engine, and one more that leads to them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clusterbox import DISK, LAB, Hosts, started

COUNT = int(os.environ.get("RLBOX_MANY_NODES", "64"))
NODES = tuple(f"node{number}" for number in range(COUNT))
GATE = f"node{COUNT}"
TARGET = f"""
title = "Many nodes without an engine"
[base]
bootstrap = "debian:bookworm"
[hardware]
nodes = {COUNT}
[[stack]]
name = "engine"
packages = ["ray[default]==2.60.0"]
[run]
network = "host"
[disk]
host = "{DISK}"
need_gib = 0.01
[cluster]
nodes = [{", ".join(f'"{name}"' for name in NODES)}]
"""


NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")


@contextmanager
def room_for_neighbours() -> Iterator[None]:
    """Sixty-four hosts know 4,032 neighbours; the kernel's table, one for all namespaces, holds 1,024."""
    before = NEIGHBOURS.read_text()
    NEIGHBOURS.write_text(str(max(int(before), 8192)))
    try:
        yield
    finally:
        NEIGHBOURS.write_text(before)


@contextmanager
def many_up(project: Path) -> Iterator[Hosts]:
    """Start the hosts, to each of which the target was brought; end them."""
    (project / "images/many").mkdir(parents=True)
    (project / "images/many/target.toml").write_text(TARGET)
    with room_for_neighbours(), started(COUNT + 1, CLUSTER_HOSTS_DISK="64M", CLUSTER_HOSTS_ENGINES="none"):
        for name in NODES:
            place(name)
        yield Hosts(project=project)


def place(name: str, state: str = "laid") -> None:
    """Have a host tell that the target was brought to it."""
    folder = LAB / name / "disk" / "root" / ".cache/rlbox/places/many/opt/rlbox/share"
    folder.mkdir(parents=True, exist_ok=True)
    told = {"target": "many", "state": state, "lock": "", "data": DISK}
    (folder / "applied.json").write_text(json.dumps(told))


def through_the_gate(folder: Path) -> str:
    """Write ssh's configuration that leads to every host through one; return the file."""
    config = folder / "through"
    rows = (LAB / "ssh_config").read_text()
    config.write_text(f"Host {GATE}\n  ProxyJump none\nHost node*\n  ProxyJump {GATE}\n{rows}")
    return str(config)


def bare(names: Sequence[str], config: str = "") -> None:
    """Log in to each host and do nothing there, eight at once."""
    env = {**os.environ, **({"CLUSTER_HOSTS_SSH": config} if config else {})}
    words = ["xargs", "-P8", "-I{}", str(LAB / "bin/ssh"), "-oBatchMode=yes", "{}", "true"]
    subprocess.run(words, input="\n".join(names), text=True, check=True, env=env, capture_output=True)


def accepted() -> dict[str, int]:
    """Return how many connections each host has let in."""
    return {name: _log(name).count("Accepted") for name in (*NODES, GATE)}


def _log(name: str) -> str:
    return (LAB / name / "disk/var/log/sshd.log").read_text("utf-8", "replace")


def dropped() -> list[str]:
    """Return the hosts whose sshd has turned a connection away because there were too many."""
    signs = ("MaxStartups", "drop connection", "no more sessions")
    return [name for name in (*NODES, GATE) if any(sign in _log(name) for sign in signs)]
