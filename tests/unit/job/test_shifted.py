"""All ports of a job moved by one number, and what may listen there."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.job.job import Job, load_job, shift_ports
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, plan_run
from rlbox.supervise.ports import is_port_declared


def shipped(name: str) -> Job:
    return load_job(Project(folder=CHECKOUT), name)


@pytest.mark.parametrize("name", ["holdem", "xdan"])
def test_what_follows_the_head_moves_with_it(name: str) -> None:
    job = shift_ports(shipped(name), 100)
    paths = ProcessPaths(data="/data", run="/run", job="/job", python="/python")
    plan = plan_run(job, resolve_params(job, (), {}), paths, run_id="r", place="here", target="t")
    assert plan.env["RLBOX_RAY_PORT"] == "8200"
    stage = next(stage for stage in plan.stages if stage.services)
    ray = next(service for service in stage.services if service.name == "ray")
    assert "--port=8200" in ray.argv
    reached = [port for port in range(8090, 8230) if is_port_declared(ray.listens, port, range(0))]
    assert reached == list(range(8200, 8216))
    assert stage.ray is not None
    assert stage.ray.dashboard == "http://127.0.0.1:8201"


@pytest.mark.parametrize("by", [60000, -8000])
def test_a_port_that_nobody_may_have(by: int) -> None:
    with pytest.raises(SpecError, match=rf"--shift-ports {by} moves port \w+ of job xdan to "):
        shift_ports(shipped("xdan"), by)
