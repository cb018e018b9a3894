"""A job on a cluster that stands: the cluster is its Ray, and says numbers, addresses and ports."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fakes import CHECKOUT
from pydantic import ValidationError

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.job.cluster_job import ClusterParams, adapt_job_to_cluster
from rlbox.job.job import Job, load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, RayNodeAddress, RunCluster, RunPlan, parse_run_plan, plan_run

PATHS = ProcessPaths(run="/data/runs/r", job="/data/runs/r/job", data="/data", python="python")
GIVES = ClusterParams(
    head_address="10.0.0.1",
    nodes=2,
    gpus_per_node=8,
    total_gpus=16,
    temp_dir="/data/ray/ab",
    ports={"gcs": 8120, "dashboard": 8121, "client": 8122},
)


def planned(name: str, *profiles: str, **settings: str) -> RunPlan:
    """Return the plan of a shipped job on a cluster."""
    job = load_job(Project(folder=CHECKOUT), name)
    moved = adapt_job_to_cluster(job, resolve_params(job, profiles, settings), GIVES)
    return plan_run(moved.job, moved.values, PATHS, run_id="r", place="cluster", target="t")


def test_xdan_takes_the_cluster_for_its_head() -> None:
    plan = planned("xdan")
    assert {stage.name: [one.name for one in stage.services] for stage in plan.stages} == {
        "data": [],
        "cluster": ["reward"],
        "train": ["reward"],
        "gap": [],
    }
    ray = [stage.ray for stage in plan.stages]
    assert (ray[0], ray[3]) == (None, None)
    for one in ray[1:3]:
        assert one is not None
        assert (one.dashboard, one.service, one.temp_dir) == ("http://127.0.0.1:8121", "", "/data/ray/ab")
    assert [stage.steps for stage in plan.stages] == [20.0, 0.0, 0.0, 20.0]  # who works there is not seen from here
    words = plan.stages[2].argv
    assert words[words.index("--reward.remote_url") + 1] == "http://10.0.0.1:5001/get_reward"
    assert plan.env["NO_PROXY"] == "127.0.0.1,localhost,10.0.0.1"
    given = {"head": "10.0.0.1", "nodes": 2, "node_gpus": 8, "cluster_gpus": 16}
    assert {name: plan.params[name] for name in given} == given
    assert {plan.origins[name] for name in given} == {"cluster"}


def test_what_is_set_stays() -> None:
    plan = planned("xdan", head="gpu005")
    assert (plan.params["head"], plan.origins["head"], plan.params["nodes"]) == ("gpu005", "--set", 2)


def test_gkd_is_a_job_of_the_cluster() -> None:
    distill = next(stage for stage in planned("gkd").stages if stage.name == "distill")
    assert distill.ray is not None
    assert not distill.own_ray
    assert "trainer.nnodes=2" in distill.argv
    assert "RAY_ADDRESS" not in planned("gkd").env


def test_a_job_of_one_machine_is_refused() -> None:
    with pytest.raises(SpecError, match=r"job smoke runs on one machine: it has no table \[cluster\]"):
        planned("smoke")


def table(**cluster: Any) -> dict[str, Any]:
    """Return a small job with a table `[cluster]`."""
    ready = {"url": "http://127.0.0.1:1/", "contains": "x"}
    return {
        "name": "two",
        "title": "Two",
        "target": "local",
        "params": {"head": {"default": "a", "help": "the head"}},
        "ports": {"dash": 8101},
        "services": [{"name": "ray", "title": "Ray", "command": ["true"], "ready": ready}],
        "stages": [{"name": "a", "title": "A", "command": ["true"], "services": ["ray"], "gate": {"require": [
            {"pattern": "up", "log": "ray", "why": "it is up"}]}}],
        "cluster": cluster,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"ray": "rya"}, "cluster.ray: unknown service 'rya' (did you mean 'ray'?)"),
        ({"ray": "ray"}, "cluster.ray: the gate of stage a looks at a log that a cluster's head has not"),
        ({"params": {"haed": "head"}}, "cluster.params: unknown parameter 'haed' (did you mean 'head'?)"),
        ({"ports": {"gcs": "gcs"}}, "cluster.ports: unknown port 'gcs'"),
    ],
)
def test_what_is_wrong_with_the_table_is_named(cluster: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Job.model_validate(table(**cluster))
    assert said in str(caught.value)


def test_a_plan_comes_back_from_its_file() -> None:
    nodes = (RayNodeAddress(name="a", address="10.0.0.1", port=8130),)
    cluster = RunCluster(name="pair", closed="tls", nodes=nodes, words="pair", options="--place cluster --target pair")
    plan = replace(planned("xdan"), cluster=cluster)
    assert parse_run_plan(json.loads(json.dumps(plan.as_json()))) == plan
