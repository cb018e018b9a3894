"""What happens to nodes of a cluster on two real hosts is told apart by `status`, and brought back by `up`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from clusterbox import DISK, GATE, Hosts, ids, script
from clusterstand import healthy
from enginebox import Result

NAMES = ("pair",)
FILL = f"fallocate -l $(( $(df --output=avail -B1 {DISK} | tail -1) - 8000000 )) {DISK}/large"
NO_SSH = f"INPUT -s {GATE} -p tcp --dport 22 --syn -j REJECT"
RAYLET = "docker exec $(docker ps -q) sh -c 'kill -9 $(pgrep -x raylet)'"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts"),
    pytest.mark.usefixtures("standing"),
]


def status(hosts: Hosts) -> Result:
    """Return what `status` says of a cluster that is not as it should be."""
    said = hosts("cluster", "status", "pair", "--json")
    assert said.code == 5, said.out
    return said


def happened(hosts: Hosts) -> list[tuple[str, str]]:
    """Return what `status` says that happened: node and id."""
    return [(one["where"], one["id"]) for one in status(hosts).data["failures"]]


@contextmanager
def planted(hosts: Hosts, host: str, deed: str, undo: str) -> Iterator[None]:
    """Do something on a host, without ssh, and undo it."""
    script("exec", host, "sh", "-c", deed)
    try:
        yield
    finally:
        script("exec", host, "sh", "-c", undo)


def test_a_node_that_is_not_reached(hosts: Hosts) -> None:
    """Our own way to it is closed; its cable is cut; its power: then it is another start of the machine."""
    with planted(hosts, "node1", f"iptables -I {NO_SSH}", f"iptables -D {NO_SSH}"):
        assert happened(hosts) == [("node1", "connection-cut")]
    healthy(hosts("cluster", "status", "pair", "--json"))
    script("cut", "node1")
    try:
        assert happened(hosts) == [("node1", "host-gone")]
        assert ids(hosts("cluster", "doctor", "pair", "--json")) == {"node1": ["host-gone"]}
    finally:
        script("heal", "node1")
    script("kill", "node1")
    try:
        assert happened(hosts) == [("node1", "host-gone")]
    finally:
        script("up", "2")
    assert happened(hosts) == [("node1", "host-restarted")]
    healthy(hosts("cluster", "up", "pair", "--json"))


def test_a_node_that_was_not_reached_for_long(hosts: Hosts) -> None:
    """Its cable is cut until Ray gives it up, and healed: its Ray finds itself given up, and ends."""
    script("cut", "node1")
    try:
        end = time.monotonic() + 300
        while not status(hosts).data["nodes"][1]["missing"].startswith("Ray lost it"):
            assert time.monotonic() < end
    finally:
        script("heal", "node1")
    hosts.on("node1", "timeout 100 docker wait $(docker ps -aq)")
    assert happened(hosts) == [("node1", "cut-off")]
    healthy(hosts("cluster", "up", "pair", "--json"))


def test_a_node_that_is_reached(hosts: Hosts) -> None:
    """Its disk is full; its Ray ends; containers of both are killed, the worker's first."""
    with planted(hosts, "node1", FILL, f"rm {DISK}/large"):
        assert happened(hosts) == [("node1", "disk-full")]
    healthy(hosts("cluster", "status", "pair", "--json"))
    hosts.on("node1", RAYLET)
    hosts.on("node1", "timeout 60 docker wait $(docker ps -aq)")
    (only,) = happened(hosts)
    assert only == ("node1", "ray-ended")
    healthy(hosts("cluster", "up", "pair", "--json"))
    hosts.on("node1", "docker kill $(docker ps -q)")
    hosts.on("node0", "docker kill $(docker ps -q)")
    assert happened(hosts) == [("node1", "container-killed"), ("node0", "container-killed")]
    text = hosts("cluster", "status", "pair").out
    assert "node1: its container was killed: exit code 137, since " in text
    assert text.count("it failed first") == 1
    doctor = hosts("cluster", "doctor", "pair", "--json")
    assert ids(doctor) == {"node0": ["container-killed"], "node1": ["container-killed"]}
    healthy(hosts("cluster", "up", "pair", "--json"))
