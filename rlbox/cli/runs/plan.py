"""`rlbox plan`: what a job needs of its machine, part by part, and whether it fits."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_job
from rlbox.cli.options import gpus_option, job_options, shared


@click.command()
@click.argument("name", metavar="JOB", shell_complete=complete_job)
@job_options
@click.option("--machine", metavar="GPUSxGB", help="Another machine: 4x24 is four cards of 24 GB, 2x8x80 two nodes.")
@gpus_option
@shared
def verb(
    app: App,
    name: str,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    machine: str | None,
    gpus: str,
) -> int:
    """Show what a run of JOB needs: GPUs and their memory, host memory, disk, and whether the target has it.

    Nothing is started or measured. Exit code 5: it does not fit, with the nearest setting that does.

    \b
    Examples:
      rlbox plan sft
      rlbox plan sft --profile rtx-4090-x4 --machine 4x24
      rlbox plan xdan --set train_batch=256
    """
    from rlbox.job.params import parse_settings
    from rlbox.planner.act.plan import plan_job
    from rlbox.planner.nearest import Asked

    wish = Asked(profiles=profiles, settings=parse_settings(settings))
    return plan_job(app, name, wish, target or "", machine or "", gpus)
