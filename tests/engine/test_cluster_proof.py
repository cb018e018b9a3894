"""Two hosts are given work whose result is known: a slow cable and wrong results that are planted are named.

Real torch and gloo in the cluster's own containers. What is planted is in the network, and in the
packages of a container, and nowhere in rlbox.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from clusterbox import Hosts, findings, hosts_up
from clusterstand import RAYS, TARGET, TORCH, as_before, healthy
from enginebox import Result
from following import Follow

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")]

SITE = "/opt/venv/lib/python3.11/site-packages"
WRONG = """
import torch.distributed
real = torch.distributed.all_reduce
def all_reduce(given, *more, **rest):
    real(given, *more, **rest)
    given[123] += 1
torch.distributed.all_reduce = all_reduce
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts, and a target with torch that is built here."""
    project = tmp_path_factory.mktemp("project")
    (project / "images/pair").mkdir(parents=True)
    text = TARGET.replace("RAY", RAYS["pair"]).replace("[run]", f"{TORCH}[run]")
    (project / "images/pair/target.toml").write_text(text)
    with hosts_up(project) as found:
        for words in (("lock", "pair"), ("build", "pair")):
            done = found(*words)
            assert done.code == 0, done.err
        yield found


@pytest.fixture
def hosts(two: Hosts, follow: Follow) -> Iterator[Hosts]:
    """The hosts; whatever a test did, and however it ended: after `down` they are as they were."""
    with as_before(two, follow, ("pair",)):
        yield two


@contextmanager
def slow_cable() -> Iterator[None]:
    """What goes to `node1` goes by 80 Mbit a second."""
    device = ("dev", "rlh-1", "root")
    shape = ("tbf", "rate", "80mbit", "burst", "256kb", "latency", "200ms")
    subprocess.run(["tc", "qdisc", "add", *device, *shape], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", *device], check=True)


@contextmanager
def planted(hosts: Hosts) -> Iterator[None]:
    """The interpreter of `node1`'s container has one number of torch's wrong."""
    inside = "docker exec -i -u 0 $(docker ps -q) sh -c"
    hosts.on("node1", f"{inside} 'cat > {SITE}/planted.py; echo import planted > {SITE}/planted.pth' <<'X'\n{WRONG}\nX")
    try:
        yield
    finally:
        hosts.on("node1", f"{inside} 'rm {SITE}/planted.py {SITE}/planted.pth'")


def errors(result: Result) -> list[tuple[str, str]]:
    return [(one["where"], one["id"]) for one in findings(result) if one["level"] == "error"]


def test_sound_nodes_stand_it(hosts: Hosts) -> None:
    up = hosts("cluster", "up", "pair", "--prove", "--json")
    healthy(up)
    assert [way["nodes"] for way in up.data["proof"]["ways"]] == [["node0"], ["node1"], ["node0", "node1"]]
    assert all(way["bytes_s"] > 0 and not way["wrong"] for way in up.data["proof"]["ways"])
    again = hosts("cluster", "doctor", "pair", "--prove")
    assert again.code == 0, again.out + again.err
    assert "all-reduce" in again.out


def test_a_slow_link_is_named(hosts: Hosts, follow: Follow) -> None:
    with slow_cable():
        down = hosts("cluster", "up", "pair", "--prove")
        assert down.code == 5, down.out + down.err
        assert "cluster pair does not stand the proof" in down.err
        assert "node0 and node1" in down.err
        assert "the way between nodes is slow" in down.err
        assert hosts("cluster", "status", "pair").code == 5  # what the call had started is gone
        healthy(hosts("cluster", "up", "pair", "--json"))
        doctor = hosts("cluster", "doctor", "pair", "--prove", "--json")
        assert errors(doctor) == [("node0 and node1", "link-slow")]
        (one,) = [one for one in findings(doctor) if one["id"] == "link-slow"]
        assert "MB/s" in one["seen"]
        step = follow.step(("cluster", "doctor", "pair", "--prove", "--json"), doctor, one["remedy"])
    assert errors(follow.again(step)) == []


def test_a_wrong_result_is_named(hosts: Hosts, follow: Follow) -> None:
    healthy(hosts("cluster", "up", "pair", "--json"))
    with planted(hosts):
        doctor = hosts("cluster", "doctor", "pair", "--prove", "--json")
    assert errors(doctor) == [("node1", "reduce-wrong")]
    (one,) = [one for one in findings(doctor) if one["id"] == "reduce-wrong"]
    step = follow.step(("cluster", "doctor", "pair", "--prove", "--json"), doctor, one["remedy"])
    assert errors(follow.again(step)) == []
