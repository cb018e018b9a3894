"""A target or a job as a file for Slurm, SkyPilot, dstack and KubeRay, or as a dev container."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from rlbox.app import App
from rlbox.engine.container import format_resource_args_without_gpus
from rlbox.engine.reference import DOCKER_HUB, ImageReference, parse_reference
from rlbox.errors import SpecError
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.i18n import _
from rlbox.image.names import project_image_tag
from rlbox.image.plan import ImagePlanInputs, build_container_defaults
from rlbox.image.templates import render_template
from rlbox.job.job import Job, load_job
from rlbox.job.params import resolve_params
from rlbox.target.target import Hardware

FleetFormat = Literal["slurm", "skypilot", "dstack", "kuberay", "devcontainer"]
FLEET_FORMATS: tuple[FleetFormat, ...] = get_args(FleetFormat)
_TEMPLATES: Mapping[FleetFormat, str] = {
    "slurm": "exports/slurm.sh.j2",
    "skypilot": "exports/skypilot.yaml.j2",
    "dstack": "exports/dstack.yaml.j2",
    "kuberay": "exports/kuberay.yaml.j2",
    "devcontainer": "exports/devcontainer.json.j2",
}
_PROJECT_MOUNT = "/mnt/project"
"""Where containers see a project with its own job or target."""
HEAD_VARIABLE = "RLBOX_HEAD"
"""Shell variable of the exported files: the address of the node that runs the job."""


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """The options of `rlbox export`; `name` is a job or a target, a name that is both is the job."""

    name: str
    form: FleetFormat
    image: str
    target: str | None
    profiles: tuple[str, ...]
    param_settings: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class FirstNodeCommand:
    """The shell command of the first node; the other nodes join its Ray at `ray_port` (0: there are none)."""

    command: str
    nodes: int
    gpus: int
    ray_port: int = 0
    secrets: tuple[str, ...] = ()
    optional_secrets: tuple[str, ...] = ()


def render_fleet_export(app: App, request: ExportRequest) -> str:
    """Return a file that starts `rlbox run JOB --place here` in the target's image; for a target, `rlbox doctor`.

    Raises SpecError: the image has no digest, or the format cannot start the job.
    """
    project = app.project
    job = load_job(project, request.name) if request.name in project.own_pack_and_shipped_job_files() else None
    if job is None and (request.target or request.profiles or request.param_settings):
        raise SpecError(
            _("--target, --profile and --set need a job; {name} is a target").format(name=request.name),
            next_step=f"rlbox export {request.name} --format {request.form}",
        )
    target_name = request.target or (job.target if job else request.name)
    sources = ImagePlanInputs.load(project, target_name)
    target, versions = sources.target, map_packages_to_version_or_empty(sources.target, sources.lock)
    container = build_container_defaults(target, render_fixes_or_raise_refusal(sources.fixes, target, versions))
    gpus = target.hardware.gpus or (1 if target.hardware.gpu else 0)
    commands = _plan_job(job, request, gpus) if job else FirstNodeCommand(command="rlbox doctor", nodes=1, gpus=gpus)
    if request.form == "kuberay" and "ray" not in versions:
        raise SpecError(
            _("KubeRay starts Ray from the image, and target {target} has no Ray").format(target=target_name),
            next_step=_("choose another --format, or a target with Ray in its lock file"),
        )
    spec_files = [project.require_target_file(target_name), *([project.require_job_file(job.name)] if job else [])]
    reference = _require_digest_unless_local(request)
    values = {
        "name": request.name,
        "target": target,
        "container": container,
        "commands": commands,
        "image": reference or project_image_tag(project, target_name),
        "pyxis_image": _format_pyxis_image(reference) if reference else "",
        "ray_version": versions.get("ray", ""),
        "cpus": container.cpus or target.hardware.cores,
        "memory_gib": container.memory_gib or target.hardware.memory_gib,
        "gpu_gb": _round_gpu_gb(target.hardware),
        "docker_args": format_resource_args_without_gpus(container),
        "project": "" if all(map(project.is_shipped, spec_files)) else _PROJECT_MOUNT,
    }
    return render_template(sources.template_dirs, _TEMPLATES[request.form], values)


def _plan_job(job: Job, request: ExportRequest, target_gpus: int) -> FirstNodeCommand:
    """Return what starts a job; its `[cluster]` table says which parameters are nodes, GPUs and the head's address."""
    values = resolve_params(job, request.profiles, request.param_settings)
    words = ["rlbox", "run", job.name, "--place", "here"]
    words += ["--target", request.target] if request.target else []
    words += [word for profile in request.profiles for word in ("--profile", profile)]
    words += [word for name, value in request.param_settings.items() for word in ("--set", f"{name}={value}")]
    command = shlex.join(words)
    given = {source: name for name, source in job.cluster.params.items()} if job.cluster else {}
    nodes = int(values.params[given["nodes"]]) if "nodes" in given else 1
    gpus = int(values.params[given["node-gpus"]]) if "node-gpus" in given else target_gpus
    ray_port = 0
    if nodes > 1:
        ports = {source: job.ports[name] for name, source in job.cluster.ports.items()} if job.cluster else {}
        ray_port = ports.get("gcs", 0)
        if not ray_port or request.form == "devcontainer":
            raise SpecError(
                _("--format {form} cannot start job {job} on {nodes} nodes").format(
                    form=request.form, job=job.name, nodes=nodes
                ),
                where=f"jobs/{job.name}.toml: cluster.ports",
                next_step=_("rlbox run {job} --place cluster, or choose a profile of one node").format(job=job.name),
            )
    if nodes > 1 and "head" in given:
        command += f' --set {given["head"]}="${HEAD_VARIABLE}"'
    return FirstNodeCommand(
        command=command,
        nodes=nodes,
        gpus=gpus,
        ray_port=ray_port,
        secrets=job.secrets,
        optional_secrets=job.optional_secrets,
    )


def _require_digest_unless_local(request: ExportRequest) -> str:
    """Return the image's name by digest; empty for a dev container of the image that `rlbox build` made."""
    if request.form == "devcontainer" and not request.image:
        return ""
    reference = parse_reference(request.image) if request.image else None
    if reference is None or not reference.digest:
        raise SpecError(
            _("--format {form} needs --image with a digest: HOST/NAMESPACE/NAME@sha256:DIGEST").format(
                form=request.form
            ),
            where="--image",
            next_step=_("rlbox push TARGET --to REGISTRY/NAMESPACE/, which prints it"),
        )
    return reference.format_name_with_digest(reference.digest)


def _format_pyxis_image(name_with_digest: str) -> str:
    """Source of the grammar: enroot src/docker.sh; without a registry it is Docker Hub."""
    reference: ImageReference = parse_reference(name_with_digest)
    registry = "" if reference.host == DOCKER_HUB else f"{reference.host}#"
    return f"{registry}{reference.repository}@{reference.digest}"


def _round_gpu_gb(hardware: Hardware) -> int:
    """Return the memory of one GPU as catalogs of providers state it, at least 1: 79.6 GiB is an 80 GB card."""
    return max(1, round(hardware.gpu_memory_gib))
