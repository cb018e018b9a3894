"""`rlbox run`: carry out a job, stage by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_job, complete_publish, complete_run, complete_stage
from rlbox.cli.options import dry_run, gpus_option, job_options, run_place_option, shared
from rlbox.errors import SpecError

if TYPE_CHECKING:
    from rlbox.run.place import RunOptions


@click.command()
@click.argument("name", metavar="[JOB]", required=False, shell_complete=complete_job)
@job_options
@run_place_option
@click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
@click.option("--env-file", metavar="FILE", help="File with the job's secrets instead of the .env that is there.")
@gpus_option
@click.option("--detach", "-d", is_flag=True, help="Return at once; the run keeps running in the background.")
@click.option(
    "--resume",
    "run",
    metavar="RUN",
    shell_complete=complete_run,
    help="Resume RUN where it ended, in its own directory.",
)
@click.option(
    "--from", "first_stage", default="", metavar="STAGE", shell_complete=complete_stage, help="Start with this stage."
)
@click.option(
    "--force",
    is_flag=True,
    help="Start though stages have not passed, the job does not fit, or stack or source do not match; recorded.",
)
@click.option(
    "--open",
    is_flag=True,
    help="Run even if anyone who can reach its ports can execute code in it; this is recorded.",
)
@click.option("--build", is_flag=True, help="First start an engine and build the image, where they are missing.")
@click.option(
    "--publish",
    multiple=True,
    metavar="PORT",
    shell_complete=complete_publish,
    help="Publish a port of a service at 127.0.0.1, by name; may be repeated.",
)
@click.option(
    "--shift-ports", type=int, default=0, metavar="N", help="Add N to each port of the job: two runs share a machine."
)
@click.option("--nodes", metavar="A,B,…", default="", help="With --place cluster: its nodes, the head first.")
@click.option(
    "--cluster", default="", metavar="NAME", help="With --place cluster: one of several of yours on the same nodes."
)
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
    open: bool,
    build: bool,
    publish: tuple[str, ...],
    shift_ports: int,
    nodes: str,
    cluster: str,
) -> int:
    """Run JOB: its stages in order, each only after the gate of the one before held.

    The run keeps going when the terminal closes; Ctrl-C stops it.

    \b
    Examples:
      rlbox run smoke
      rlbox run smoke --build
      rlbox run smoke --profile learn
      rlbox run smoke --set rollouts=4 --data /mnt/data
      rlbox run --resume smoke-20260101
      rlbox run xdan --place cluster --nodes gpu005,gpu006
    """
    from rlbox.job.params import parse_settings
    from rlbox.run.place import RunOptions
    from rlbox.run.places import CLUSTER

    if (nodes or cluster) and place != CLUSTER:
        raise click.UsageError("--nodes and --cluster are for --place cluster.")
    options = RunOptions(
        place=place,
        target=target,
        data=data,
        profiles=profiles,
        settings=parse_settings(settings),
        env_file=env_file,
        gpus=gpus,
        detach=detach,
        first_stage=first_stage,
        force=force,
        open=open,
        build=build,
        publish=publish,
        nodes=nodes,
        cluster=cluster,
        shift_ports=shift_ports,
    )
    if run:
        from rlbox.run.resume import resume_run

        _refuse_with_resume(name, options)
        return resume_run(app, run, options)
    if not name:
        raise SpecError("no job is named", next_step=f"choose one of: {', '.join(app.project.jobs())}")
    from rlbox.run.start import start_run

    return start_run(app, name, options)


def _refuse_with_resume(job: str | None, options: RunOptions) -> None:
    fixed = {
        "JOB": job,
        "--profile": options.profiles,
        "--build": options.build,
        "--shift-ports": options.shift_ports,
    }
    for word, value in fixed.items():
        if value:
            raise SpecError(f"--resume takes no {word}: the run has its own", next_step="rlbox run --resume RUN")
