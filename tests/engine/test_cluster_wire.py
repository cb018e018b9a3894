"""What an image costs on the wire to the hosts of a cluster: a changed layer once for each, and else nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusterbox import ENGINES, GATE, NODES, Hosts, wire_bytes
from clusterstand import docker, healthy
from following import Follow
from projectbox import PROJECT
from registrybox import registry_running

NAMES = ("pair",)
IMAGE = f"rlbox/pair:{PROJECT}"
LAYER = 60_000_000
MORE = f"FROM {IMAGE}\nUSER root\nRUN head -c {LAYER} /dev/urandom >/opt/NAME\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts"),
    pytest.mark.usefixtures("standing"),
]


@contextmanager
def put_back() -> Iterator[None]:
    """Give the image its name back behind the block; a second name keeps it: an engine drops what has none."""
    docker("tag", IMAGE, f"{IMAGE}-kept")
    try:
        yield
    finally:
        docker("tag", f"{IMAGE}-kept", IMAGE)
        docker("rmi", f"{IMAGE}-kept")


def add_layer(name: str) -> None:
    """Put one more layer on the image, with a file of this name."""
    words = ["docker", "build", "-q", "-t", IMAGE, "-"]
    subprocess.run(words, input=MORE.replace("NAME", name).encode(), check=True, capture_output=True)


def test_a_layer_that_changed_is_all_that_is_sent(hosts: Hosts) -> None:
    """One more layer, of bytes that nothing makes smaller."""
    began = wire_bytes()
    healthy(hosts("cluster", "up", "pair", "--json"))
    assert wire_bytes() - began < LAYER / 10  # nothing changed: ssh and what Ray tells its nodes
    assert hosts("cluster", "down", "pair").code == 0
    began = wire_bytes()
    healthy(hosts("cluster", "up", "pair", "--json"))
    assert wire_bytes() - began < LAYER / 10  # the image is there
    assert hosts("cluster", "down", "pair").code == 0
    with put_back():
        add_layer("sent")
        began = wire_bytes()
        healthy(hosts("cluster", "up", "pair", "--json"))
        assert 2 * LAYER < wire_bytes() - began < 2.1 * LAYER
        for node in NODES:
            container = hosts.on(node, "docker ps -q --filter label=rlbox.cluster=pair").strip()
            assert hosts.on(node, f"docker exec {container} stat -c %s /opt/sent").strip() == str(LAYER)


@pytest.mark.skipif("20" in ENGINES, reason="what such an engine is given is in test_cluster_engines.py")
def test_a_registry_gives_it_to_each_node(hosts: Hosts, follow: Follow, tmp_path: Path) -> None:
    """One node cannot reach it at first; a layer that both lack is all that is pulled, and both have the very same."""
    assert hosts("cluster", "down", "pair").code == 0
    with registry_running(tmp_path, "0.0.0.0") as registry:
        port = registry.rpartition(":")[2]
        with put_back():
            add_layer("pulled")
            pushed = hosts("push", "pair", "--to", f"127.0.0.1:{port}/team/")
            assert pushed.code == 0, pushed.err
        digest = pushed.out.strip().rpartition("@")[2]
        typed = ("cluster", "up", "pair", "--image", f"{GATE}:{port}/team/pair@{digest}")
        hosts.on("node1", f"iptables -I OUTPUT -d {GATE} -p tcp --dport {port} -j REJECT")
        try:
            refused = follow(*typed)
        finally:
            hosts.on("node1", f"iptables -D OUTPUT -d {GATE} -p tcp --dport {port} -j REJECT")
        assert refused.said.code == 4, refused.said.err
        assert "the engine of node node1 could not pull" in refused.said.err
        began = wire_bytes()
        follow.again(refused)
        assert LAYER < wire_bytes() - began < 1.05 * LAYER  # the other had it already
        began = wire_bytes()
        assert healthy(hosts(*typed, "--json"))
        assert wire_bytes() - began < 1e6
    for node in NODES:
        container = hosts.on(node, "docker ps -q --filter label=rlbox.cluster=pair").strip()
        assert hosts.on(node, f"docker exec {container} stat -c %s /opt/pulled").strip() == str(LAYER)
    hosts.on("node1", "docker kill $(docker ps -q)")  # one that is healthy is left as it is, whatever image is here
    other = follow.rlbox("cluster", "up", "pair")
    assert "started with another image" in other.err
