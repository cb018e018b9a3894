"""A project with small targets of two nodes, and the hosts that they stand on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterbox import GATE, NODES, Hosts, hosts_up
from enginebox import Result
from following import Follow

TARGET = """
title = "Two small nodes"
[base]
bootstrap = "debian:bookworm"
packages = ["ca-certificates", "iproute2", "procps", "python3", "python3-venv"]
[python]
platform = "x86_64-manylinux_2_36"
[hardware]
nodes = 2
[[stack]]
name = "engine"
packages = ["ray[default]==RAY", "numpy", "setuptools"]
[run]
network = "host"
shm_gib = 0.5
[disk]
host = "/srv/train"
need_gib = 0.1
[cluster]
nodes = ["node0", "node1"]
"""
RAYS = {"pair": "2.60.0", "mixed": "2.60.0", "runs": "2.60.0"}
SERVED = ("runs", "mixed")
"""Targets that have what the reward server of `xdan` imports."""
TORCH = """
[[stack]]
name = "torch"
packages = ["torch==2.13.0"]
source = "torch-wheels"
channel = "cpu"
"""
# Two processes, one a node, each with 8 MB of numbers: both add up what both have, over the wire.
REDUCE = """
import numpy, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
class Rank:
    def own(self, rank): return numpy.full(1 << 20, rank + 1.0)
    def total(self, *parts): return ray.util.get_node_ip_address(), set(sum(parts).tolist())
nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"]]
ranks = [Rank.options(scheduling_strategy=On(one, soft=False)).remote() for one in nodes]
parts = [rank.own.remote(at) for at, rank in enumerate(ranks)]
told = ray.get([rank.total.remote(*parts) for rank in ranks])
assert all(total == {3.0} for _, total in told), told
print("nodes", *sorted(address for address, _ in told))
"""
NET = GATE.rpartition(".")[0]
ADDRESSES = {"node0": f"{NET}.11", "node1": f"{NET}.12"}


@contextmanager
def built(project: Path, names: Iterable[str], **own: str) -> Iterator[Hosts]:
    """Start the hosts, with a project whose targets are built on this machine."""
    for name in names:
        (project / f"images/{name}").mkdir(parents=True)
        text = TARGET.replace("RAY", RAYS[name]).replace(
            '"numpy", ', '"numpy", ' + '"fastapi", "uvicorn", ' * (name in SERVED)
        )
        if name == "mixed":
            text = text.replace('["node0", ', f'[{{ name = "local", data = "{project}/disk" }}, ')
        (project / f"images/{name}/target.toml").write_text(text)
    (project / "disk").mkdir(mode=0o700)
    with hosts_up(project, **own) as found:
        for name in names:
            for words in (("lock", name), ("build", name)):
                result = found(*words)
                assert result.code == 0, result.err
        yield found


@contextmanager
def as_before(two: Hosts, follow: Follow, names: Iterable[str]) -> Iterator[None]:
    """Look that the hosts are as they were once the clusters are taken down, whatever the block did."""
    follow.rlbox = two
    before = two.look()
    yield
    for name in names:
        done = two("cluster", "down", name, "--force")
        assert done.code == 0, done.err
    after = two.look()
    left = {host: sorted({*after[host]} ^ {*before[host]}) for host in before}
    assert not any(left.values()), left


def healthy(result: Result) -> dict[str, dict]:
    """Return the nodes of a healthy cluster."""
    assert result.code == 0, result.err
    assert result.data["healthy"], result.out
    assert [node["container"] for node in result.data["nodes"]] == ["running", "running"]
    return {node["name"]: node for node in result.data["nodes"]}


def containers(hosts: Hosts) -> dict[str, str]:
    """Return id and start of each container on the hosts."""
    return {
        host: hosts.on(host, "docker ps -aq --no-trunc | xargs -r docker inspect -f '{{.Id}} {{.State.StartedAt}}'")
        for host in NODES
    }


def docker(*words: str) -> str:
    """Ask this machine's engine."""
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout
