"""`rlbox run`: carry out a job, stage by stage."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import complete_job, dry_run, shared
from rlbox.errors import SpecError
from rlbox.host.gpu_choice import gpus_option
from rlbox.image.act.plans import image_plan
from rlbox.run.launch import container_plan, job_secrets

if TYPE_CHECKING:
    from rlbox.job.job import Job
    from rlbox.job.params import Values
    from rlbox.run.launch import Wanted


@click.command()
@click.argument("name", metavar="[JOB]", required=False, shell_complete=complete_job)
@click.option("--target", metavar="NAME", help="Target to run on instead of the job's own.")
@click.option(
    "--profile", "profiles", multiple=True, metavar="NAME", help="Set of the job's parameters; a later one wins."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set one parameter; may be repeated.")
@click.option("--place", type=click.Choice(["docker", "here"]), default="docker", help="In a container, or in place.")
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@click.option("--env-file", metavar="FILE", help="File with the job's secrets instead of the .env that is there.")
@gpus_option
@click.option("--detach", "-d", is_flag=True, help="Return at once; the run goes on by itself.")
@click.option("--resume", "run", metavar="RUN", help="Take RUN up again where it ended, in its own directory.")
@click.option("--from", "first_stage", default="", metavar="STAGE", help="Begin with this stage.")
@click.option("--force", is_flag=True, help="Begin though earlier stages have not passed with these specs; recorded.")
@dry_run
@shared
def verb(
    app: App,
    name: str | None,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    place: str,
    data: str | None,
    env_file: str | None,
    gpus: str,
    detach: bool,
    run: str | None,
    first_stage: str,
    force: bool,
) -> int:
    """Run JOB: its stages in order, each only after the gate of the one before held.

    The run goes on when the terminal closes; Ctrl-C stops it.

    \b
    Examples:
      rlbox run smoke
      rlbox run smoke --profile learn
      rlbox run smoke --set rollouts=4 --data /mnt/data
      rlbox run --resume smoke-20260101
    """
    from rlbox.job.load import load_job
    from rlbox.job.params import parse_settings, plan_values
    from rlbox.record.act.overrides import OVERRIDES_FILE
    from rlbox.run.launch import Wanted

    told = parse_settings(settings)
    wanted = Wanted(detach=detach, first_stage=first_stage, force=force, settings=told, env_file=env_file, gpus=gpus)
    if run:
        from rlbox.run.resume import resume

        _refuse_with_resume(name, profiles)
        return resume(app, run, target, data, wanted)
    if not name:
        raise SpecError("no job is named", next_step="choose one of: " + ", ".join(app.project.jobs()))
    job = load_job(app.project, name)
    values = plan_values(job, profiles, wanted.settings)
    secrets = job_secrets(app, job, target or job.target, data, env_file)
    wanted = dataclasses.replace(wanted, secrets=secrets, files={OVERRIDES_FILE: _overrides(job, values, wanted)})
    if app.dry_run:
        return _dry_run(app, job, values, target or job.target, place, tuple(secrets))
    if place == "docker":
        from rlbox.run.docker import run_docker

        return run_docker(app, job, values, target or job.target, data, wanted)
    from rlbox.run.here import run_here

    return run_here(app, job, values, target or job.target, data, wanted)


def _refuse_with_resume(name: str | None, profiles: tuple[str, ...]) -> None:
    for word, given in (("JOB", name), ("--profile", profiles)):
        if given:
            raise SpecError(f"--resume takes no {word}: the run has its own", next_step="rlbox run --resume RUN")


def _overrides(job: Job, values: Values, wanted: Wanted) -> str:
    from rlbox.job.overrides import override_entry
    from rlbox.job.params import default_params
    from rlbox.record.act.overrides import overrides_text

    before, stage, force = default_params(job), wanted.first_stage, wanted.force
    return overrides_text(override_entry(values, wanted.settings, before=before, first_stage=stage, force=force))


def _dry_run(app: App, job: Job, values: Values, target: str, place: str, secrets: tuple[str, ...]) -> int:
    import shlex

    from rlbox.gate.told import tell_gate
    from rlbox.job.params import param_lines, units_of

    mount = image_plan(app.project, target).container.mount
    plan = container_plan(job, values, mount, f"{job.name}-DRY-RUN", target, secrets)
    lines = [f"# run of {job.name} on {target}, place {place}, profile {values.profile or 'default'}"]
    lines += [f"# {line}" for line in param_lines(values.params, values.origins, units_of(job))]
    lines += [f"# secret {secret}" for secret in secrets]
    for stage in plan.stages:
        lines += ["", f"# stage {stage.name}: {stage.title}"]
        lines += [f"{shlex.join(service.argv)}  # service {service.name}" for service in stage.services]
        lines += [shlex.join(stage.argv)]
        lines += [f"#   gate: {rule}" for rule in tell_gate(stage)]
    app.result({"plan": plan.as_json()}, "\n".join(lines))
    return 0
