"""What `make test` looks at, beside tests that are marked `core` elsewhere: doctor, resume, a cluster."""

from __future__ import annotations

import os
import signal

import pytest
from clusterbox import NODES, Hosts
from clusterstand import REDUCE, healthy
from enginebox import Box, containers, docker, wait_until

NAMES = ("pair",)
JOB = """
title = "one stage passes, the next waits until a file is there"
target = "tiny"
[[stages]]
name = "first"
title = "writes a file"
command = ["sh", "-c", "echo hello >> {run}/made; echo made it"]
[stages.gate]
require = [{ pattern = 'made it' }]
[[stages]]
name = "second"
title = "waits"
command = ["sh", "-c", "until test -e {data}/go; do sleep 0.1; done; echo went on"]
[stages.gate]
require = [{ pattern = 'went on' }]
"""

pytestmark = pytest.mark.core


def states(box: Box) -> list[str]:
    """Return the states of the stages of the latest run; none while it has no record."""
    try:
        return [stage["state"] for stage in box.state()["stages"]]
    except (OSError, ValueError, IndexError):
        return []


def test_doctor_names_the_limit_of_a_container_that_is_too_low(tiny: Box) -> None:
    report = tiny("doctor", "tiny", "--json")
    assert report.code == 1, report.err
    found = {row["id"]: row for row in report.data["findings"] if row["level"] == "error"}
    assert found["pids-limit"]["seen"].startswith("limit 200, ")
    assert found["pids-limit"]["remedy"]


def test_a_run_whose_supervisor_was_killed_resumes_where_it_was(tiny: Box) -> None:
    tiny.job("waits", JOB)
    process = tiny.start("run", "waits")
    wait_until(lambda: containers(tiny.data) and states(tiny) == ["passed", "running"], "stage second")
    docker("kill", f"--signal={signal.SIGKILL.value}", containers(tiny.data)[0])
    _, err = process.communicate(timeout=600)
    assert (process.returncode, states(tiny)) == (1, ["passed", "failed"]), err
    (tiny.data / "go").touch()
    resumed = tiny("run", "--resume", tiny.runs()[-1].name)
    assert (resumed.code, states(tiny)) == (0, ["passed", "passed"]), resumed.err
    assert (tiny.runs()[-1] / "made").read_text() == "hello\n"  # the stage that had passed did not run again


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")
def test_a_cluster_of_two_containers_works_and_leaves_nothing(hosts: Hosts) -> None:
    up = hosts("cluster", "up", "pair", "--json")
    assert [*healthy(up)] == [*NODES]
    container = hosts.on("node0", "docker ps -q --filter label=rlbox.cluster=pair").strip()
    said = hosts.on("node0", f"docker exec -i {container} /opt/venv/bin/python - <<'X'\n{REDUCE}\nX")
    assert said.split()[-3] == "nodes"
    assert hosts("cluster", "down", "pair").code == 0
