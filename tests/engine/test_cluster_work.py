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
