"""What goes on on a cluster of two real hosts is not ended unasked: neither by `down` nor by another `up`."""

from __future__ import annotations

import os

import pytest
from clusterbox import Hosts
from clusterstand import containers, healthy
from following import Follow

NAMES = ("pair",)
WAITS = "import time; print('ready', flush=True); time.sleep(600)"
SUBMIT = ("cluster", "submit", "pair", "--detach", "--json", "--", "/opt/venv/bin/python", "-c", WAITS)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts"),
    pytest.mark.usefixtures("standing"),
]


def submitted(hosts: Hosts) -> str:
    """Submit a job that goes on, and return its name."""
    done = hosts(*SUBMIT)
    assert done.code == 0, done.err
    return str(done.data["job"])


def test_a_job_holds_its_cluster(hosts: Hosts, follow: Follow) -> None:
    """It is stopped as advised, and the same command goes through; then another ends with its cluster."""
    job, began = submitted(hosts), containers(hosts)
    used = follow("cluster", "down", "pair")
    assert used.said.code == 8, used.said.err
    assert f"cluster pair is in use: job {job}" in used.said.err
    assert containers(hosts) == began
    stop, down = used.commands({})
    assert down == ["cluster", "down", "pair", "--force"]
    assert hosts(*stop).code == 0
    follow.again(used)
    healthy(hosts("cluster", "up", "pair", "--json"))
    submitted(hosts)
    used = follow("cluster", "down", "pair")
    follow.types(used, nth=1)


def test_a_ray_that_does_not_tell_is_left(hosts: Hosts, follow: Follow) -> None:
    """The part of Ray that knows nodes and jobs is halted: what there is cannot be told, and nothing is ended."""
    submitted(hosts)
    began = containers(hosts)
    hosts.on("node0", "docker exec $(docker ps -q) pkill -STOP gcs_server")
    try:
        up = hosts("cluster", "up", "pair")
        down = follow("cluster", "down", "pair")
    finally:
        hosts.on("node0", "docker exec $(docker ps -q) pkill -CONT gcs_server")
    assert up.code == down.said.code == 5, up.err
    for said in (up, down.said):
        assert "what goes on on cluster pair is not known" in said.err
    assert containers(hosts) == began
    healthy(hosts("cluster", "status", "pair", "--json"))
    job = hosts("cluster", "down", "pair").err.partition("rlbox cluster stop pair ")[2].partition(",")[0]
    assert hosts("cluster", "stop", "pair", job).code == 0
    follow.again(down)
