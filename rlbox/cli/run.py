"""`rlbox run`: carry out a job, stage by stage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from rlbox.cli.app import App
from rlbox.cli.options import complete_job, dry_run, shared
from rlbox.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from rlbox.plan.params import Values
    from rlbox.plan.run import RunPlan
    from rlbox.spec.job import Job

STACK_PYTHON = "/opt/venv/bin/python"


@click.command()
@click.argument("name", metavar="JOB", shell_complete=complete_job)
@click.option("--target", metavar="NAME", help="Target to run on instead of the job's own.")
@click.option("--profile", default="", metavar="NAME", help="Set of parameters from the job file.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set one parameter; may be repeated.")
@click.option("--place", type=click.Choice(["docker", "here"]), default="docker", help="In a container, or in place.")
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@dry_run
@shared
def verb(
    app: App, name: str, target: str | None, profile: str, settings: tuple[str, ...], place: str, data: str | None
) -> int:
    """Run JOB: its stages in order, each only after the gate of the one before held.

    \b
    Examples:
      rlbox run smoke
      rlbox run smoke --profile learn
      rlbox run smoke --set rollouts=4 --data /mnt/data
    """
    from rlbox.plan.params import plan_values
    from rlbox.spec.load import load_job

    job = load_job(app.project, name)
    values = plan_values(job, profile, dict(_setting(text) for text in settings))
    if app.dry_run:
        return _dry_run(app, job, values, target or job.target, place)
    if place == "docker":
        from rlbox.cli.run_docker import run_docker

        return run_docker(app, job, values, target or job.target, data)
    from rlbox.cli.run_here import run_here

    return run_here(app, job, values, target or job.target, data)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f"--set {text}: no '=' in it", next_step="write --set NAME=VALUE")
    return name, value


def container_plan(job: Job, values: Values, mount: str, run_id: str, target: str) -> RunPlan:
    """Return the plan of a run in a container that sees the data disk at `mount`."""
    from rlbox.plan.run import Paths, plan_run

    folder = f"{mount}/runs/{run_id}"
    paths = Paths(run=folder, job=f"{folder}/job", data=mount, python=STACK_PYTHON)
    return plan_run(job, values, paths, run_id=run_id, place="docker", target=target)


def programs(app: App, job: Job) -> Path | None:
    """Return the folder of the job's own programs, beside its file, if it has one."""
    folder = app.project.job_file(job.name).with_suffix("")
    return folder if folder.is_dir() else None


def _dry_run(app: App, job: Job, values: Values, target: str, place: str) -> int:
    import shlex

    mount = app.image_plan(target).container.mount
    plan = container_plan(job, values, mount, f"{job.name}-DRY-RUN", target)
    lines = [f"# run of {job.name} on {target}, place {place}, profile {values.profile or 'default'}"]
    lines += [f"# {key} = {value}" for key, value in sorted(values.params.items())]
    for stage in plan.stages:
        lines += ["", f"# stage {stage.name}: {stage.title}"]
        lines += [f"{shlex.join(service.argv)}  # service {service.name}" for service in stage.services]
        lines += [shlex.join(stage.argv)]
        lines += [f"#   gate: {rule.log} holds /{rule.pattern}/ {rule.count} times" for rule in stage.require]
        lines += [f"#   gate: {rule.log} never holds /{rule.pattern}/" for rule in stage.forbid]
        lines += [f"#   gate: {rule.path} is there and whole" for rule in stage.files]
    app.result({"plan": plan.as_json()}, "\n".join(lines))
    return 0


def caller() -> str:
    """Return `uid:gid` of whoever typed the command."""
    return f"{os.getuid()}:{os.getgid()}"
