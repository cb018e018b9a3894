"""A job as it runs on a cluster that stands: that is its Ray head, and says how many nodes and GPUs there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlbox.errors import SpecError, get_main_docs_url
from rlbox.i18n import _
from rlbox.job.job import ClusterSuppliedValues, Job, RayJobSubmission, Stage
from rlbox.job.params import SET, ParamValues
from rlbox.job.plan import RunCluster

CLUSTER = "cluster"
"""Where a parameter comes from that the cluster gives."""

_ADDRESS = "RAY_ADDRESS"


@dataclass(frozen=True, kw_only=True)
class ClusterParams:
    """What a cluster gives a job: the head's address, numbers, ports by part, the folder of its head's Ray.

    `temp_dir` is that folder as a container sees it that mounts the head's data disk.
    """

    head_address: str
    nodes: int
    gpus_per_node: int
    total_gpus: int
    temp_dir: str
    ports: Mapping[str, int] = field(default_factory=dict)

    def get_value(self, name: Literal["head", "nodes", "node-gpus", "gpus"]) -> str | int:
        known: dict[str, str | int] = {"head": self.head_address, "nodes": self.nodes}
        return {**known, "node-gpus": self.gpus_per_node, "gpus": self.total_gpus}[name]


def require_cluster_table(job: Job) -> ClusterSuppliedValues:
    if job.cluster is None:
        raise SpecError(
            _("job {job} runs on one machine: it has no table [cluster]").format(job=job.name),
            where=f"jobs/{job.name}.toml",
            next_step=_("rlbox run {job}, without --place cluster; {page} describes the table").format(
                job=job.name, page=get_main_docs_url("cluster")
            ),
        )
    return job.cluster


@dataclass(frozen=True, kw_only=True)
class ResolvedJob:
    """A job and its parameters on a backend, the cluster that this is (None: one machine), and the name of a new run.

    `preset_run_id` is empty where the command line makes the name.
    """

    job: Job
    values: ParamValues
    cluster: RunCluster | None = None
    preset_run_id: str = ""


def adapt_job_to_cluster(job: Job, values: ParamValues, cluster_params: ClusterParams) -> ResolvedJob:
    """Return a job without a Ray of its own, and its parameters; what `--set` says stays."""
    table = require_cluster_table(job)
    given = {
        name: cluster_params.get_value(word) for name, word in table.params.items() if values.origins.get(name) != SET
    }
    moved = job.model_copy(
        update={
            "ports": {**job.ports, **{name: cluster_params.ports[part] for name, part in table.ports.items()}},
            "env": _without_ray_address(job.env),
            "services": tuple(one for one in job.services if one.name != table.ray),
            "stages": tuple(_stage(stage, table.ray or "", cluster_params) for stage in job.stages),
        }
    )
    adapted = ParamValues(
        profile=values.profile,
        params={**values.params, **given},
        origins={**values.origins, **dict.fromkeys(given, CLUSTER)},
    )
    return ResolvedJob(job=moved, values=adapted)


def _stage(stage: Stage, head: str, cluster_params: ClusterParams) -> Stage:
    """Return a stage whose command is a job of the cluster's where it needs a Ray.

    Its processes are in other containers, and on other machines: that those here do nothing says nothing of them.
    """
    dashboard = f"http://127.0.0.1:{cluster_params.ports['dashboard']}"
    ray = RayJobSubmission.model_construct(dashboard=dashboard, service="", temp_dir=cluster_params.temp_dir)
    away = stage.ray is not None or stage.own_ray
    return stage.model_copy(
        update={
            "services": tuple(name for name in stage.services if name != head),
            "ray": ray if away else None,
            "limits": stage.limits.model_copy(update={"steps": 0.0}) if away else stage.limits,
            "own_ray": False,
            "env": _without_ray_address(stage.env),
        }
    )


def _without_ray_address(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name != _ADDRESS}
