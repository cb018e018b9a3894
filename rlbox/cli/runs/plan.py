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
@click.option("--data", metavar="DIR", help="Data disk with earlier runs of JOB [RLBOX_DATA].")
@click.option("--calibrate", metavar="RUN", default="", help="Take the hours of this run, whatever its parameters.")
@click.option("--price", metavar="DOLLARS", default="", help="Price of an hour: 1.60, or 1.60-2.40.")
@shared
def verb(
    app: App,
    name: str,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    machine: str | None,
    gpus: str,
    data: str | None,
    calibrate: str,
    price: str,
) -> int:
    """Show what a run of JOB needs: GPUs and their memory, host memory, disk, and whether the target has it.

    Then how many hours each stage takes and what they cost: by the last run of it on the data disk that passed with the
    same parameters, scaled to other numbers of steps; else by an assumption of the job, which is marked.

    Nothing is started or measured. Exit code 5: it does not fit, with the nearest setting that does.

    \b
    Examples:
      rlbox plan sft
      rlbox plan sft --profile rtx-4090-x4 --machine 4x24
      rlbox plan xdan --set train_batch=256
      rlbox plan sft --price 1.60-2.40
    """
    from rlbox.job.load import load_job
    from rlbox.job.params import parse_settings
    from rlbox.planner.nearest import Asked
    from rlbox.planner.plan import BudgetOptions, plan_job
    from rlbox.run.known_runs import measured_stages, stages_of_run

    wish = Asked(profiles=profiles, settings=parse_settings(settings))
    place = target or load_job(app.project, name).target
    runs = stages_of_run(app, name, calibrate, place, data) if calibrate else measured_stages(app, name, place, data)
    budget = BudgetOptions(runs=runs, calibrated=bool(calibrate), price=price)
    return plan_job(app, name, wish, target or "", machine or "", gpus, budget)
