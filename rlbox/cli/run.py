"""`rlbox run`, `attach`, `stop` and `plan`."""

from __future__ import annotations

from typing import Any

import click

from rlbox.amounts import exact_duration_text
from rlbox.app import App
from rlbox.cli.options import (
    complete_job,
    complete_run,
    data_option,
    dry_run_option,
    gpus_option,
    pass_app_with_shared_options,
    run_argument,
    target_and_data_options,
    target_profile_and_set_options,
)
from rlbox.cli.runs import make_run_state_summary_json
from rlbox.errors import SpecError
from rlbox.i18n import _, join
from rlbox.job.job import load_job
from rlbox.job.params import parse_set_options_last_wins
from rlbox.planner.fit import RunCommand, print_needs_and_cost_and_require_fit
from rlbox.run.backend import CLUSTER, DEFAULT_PLACE, PLACES, RunOptions
from rlbox.run.data_disk import clean_up_dead_runs, create_own_lock_owner, locate_run_store_or_run_remotely_and_exit
from rlbox.run.history import load_passed_stage_measurements_or_empty
from rlbox.run.launch import (
    catch_stop_signals,
    reconcile_print_and_write_status_page,
    show_progress_to_end,
    stop_or_kill_run,
)
from rlbox.run.start import resume_run_and_follow, start_run_and_follow
from rlbox.system.identity import get_user_name_or_uid


@click.command("run")
@click.argument("name", metavar="[JOB]", required=False, shell_complete=complete_job)
@target_profile_and_set_options
@click.option(
    "--place",
    type=click.Choice(PLACES),
    default=DEFAULT_PLACE,
    help="In a container, on the host without one, or on a running cluster.",
)
@data_option
@click.option("--env-file", metavar="FILE", help="File with the job's secrets instead of the .env that is there.")
@gpus_option
@click.option("--detach", "-d", is_flag=True, help="Return at once; the run keeps running in the background.")
@click.option(
    "--resume", metavar="RUN", shell_complete=complete_run, help="Resume RUN where it ended, in its own directory."
)
@click.option("--from", "first_stage", default="", metavar="STAGE", help="Start with this stage.")
@click.option(
    "--force",
    is_flag=True,
    help="Start though stages have not passed, the job does not fit, or stack or source do not match; recorded.",
)
@click.option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Run even if anyone who can reach its ports can execute code in it; this is recorded.",
)
@click.option(
    "--build", "build_missing", is_flag=True, help="First start an engine and build the image, where they are missing."
)
@click.option(
    "--publish",
    multiple=True,
    metavar="PORT",
    help="Publish a port of a service at 127.0.0.1, by name; may be repeated.",
)
@click.option(
    "--shift-ports", type=int, default=0, metavar="N", help="Add N to each port of the job: two runs share a machine."
)
@click.option("--nodes", metavar="A,B,…", default="", help="With --place cluster: its nodes, the head first.")
@click.option(
    "--cluster", default="", metavar="NAME", help="With --place cluster: one of several of yours on the same nodes."
)
@dry_run_option
@pass_app_with_shared_options
def start_or_resume_run_and_follow(
    app: App, name: str | None, settings: tuple[str, ...], resume: str | None, **given: Any
) -> int:
    """Run JOB: its stages in order, each only after the gate of the one before held.

    The run keeps going when the terminal closes; Ctrl-C stops it.

    \b
    Examples:
      rlbox run smoke
      rlbox run smoke --build
      rlbox run --resume smoke-20260101
    """
    options = RunOptions(**given, param_settings=parse_set_options_last_wins(settings))
    if (options.nodes or options.cluster) and options.place != CLUSTER:
        raise click.UsageError(_("--nodes and --cluster are for --place cluster."))
    if resume:
        own = {
            "JOB": name,
            "--profile": options.profiles,
            "--build": options.build_missing,
            "--shift-ports": options.shift_ports,
        }
        for word, value in own.items():
            if value:
                what = _("--resume takes no {word}: the run has its own").format(word=word)
                raise SpecError(what, next_step="rlbox run --resume RUN")
        return resume_run_and_follow(app, resume, options)
    if not name:
        raise SpecError(
            _("no job is named"),
            next_step=_("choose one of: {jobs}").format(jobs=", ".join(app.project.own_pack_and_shipped_job_files())),
        )
    return start_run_and_follow(app, name, options)


@click.command("attach")
@run_argument
@target_and_data_options
@pass_app_with_shared_options
def follow_run_until_end(app: App, name: str | None, target: str, data: str | None) -> int:
    """Watch RUN (by default the latest) until it ends; Ctrl-C leaves it alone. The exit code is the run's.

    \b
    Examples:
      rlbox attach
      rlbox attach smoke-20260101
    """
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    clean_up_dead_runs(app, run_store)
    run_dir = run_store.find_run_dir_or_latest(name)
    plan = run_store.load_plan_preferring_host_record(run_dir)
    with catch_stop_signals() as left:
        show_progress_to_end(app, run_dir, lambda: not left.name and run_store.is_running_or_starting(plan.run_id))
        if left.name and run_store.is_running_or_starting(plan.run_id):
            app.print_status(_("run {run} continues; stop it with: rlbox stop {run}").format(run=plan.run_id))
            return 0
    return reconcile_print_and_write_status_page(
        app, run_store, run_dir, plan, create_own_lock_owner("the end of a run")
    )


@click.command("stop")
@run_argument
@click.option("--grace", default=20, metavar="SECONDS", show_default=True, help="Until it is killed.")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def stop_run_and_kill_after_grace(app: App, name: str | None, grace: int, target: str, data: str | None) -> int:
    """Stop RUN (by default the one in progress): end its stages in order, then kill the remaining processes.

    Stopping a run that has ended changes nothing and succeeds.

    \b
    Examples:
      rlbox stop
      rlbox stop smoke-20260101 --grace 60
    """
    run_store = locate_run_store_or_run_remotely_and_exit(app, target, data)
    reconciled = clean_up_dead_runs(app, run_store)
    owner = reconciled.lock_owner
    going = [*reconciled.alive, *([owner.run] if owner and owner.run else [])]
    if name is None and not going:
        nothing = {"run": "", "state": "", "stopped": False, "data": str(run_store.data_dir)}
        text = _("no run is in progress on {data_dir}").format(data_dir=run_store.data_dir)
        return _print_nothing_to_stop(app, nothing, text)
    run_dir = run_store.find_run_dir_or_latest(going[0] if name is None else name)
    if run_dir.name not in going:
        row = make_run_state_summary_json(run_store, run_dir, reconciled)
        app.print_status(_("run {run} has already ended: there is nothing to stop").format(run=row["run"]))
        ended = {"run": row["run"], "state": row["state"], "stopped": False}
        return _print_nothing_to_stop(app, ended, join(" ", (row["run"], _(row["state"]))))
    if app.dry_run:
        data_json = {"run": run_dir.name, "state": "running", "stopped": False, "grace_s": grace}
        would = _("ask run {run} to stop, and kill its remaining processes after {grace}").format(
            run=run_dir.name, grace=exact_duration_text(grace)
        )
        return app.print_dry_run(data_json, "", would)
    app.print_status(_("stopping run {run}").format(run=run_dir.name))
    run_plan = run_store.load_plan_preferring_host_record(run_dir)
    stop_or_kill_run(run_store, run_dir, run_plan, user=get_user_name_or_uid(), via="rlbox stop", grace_s=grace)
    row = make_run_state_summary_json(run_store, run_dir, clean_up_dead_runs(app, run_store))
    app.output({"run": row["run"], "state": row["state"], "stopped": True}, join(" ", (row["run"], _(row["state"]))))
    return 0


def _print_nothing_to_stop(app: App, data: dict[str, Any], text: str) -> int:
    if app.dry_run:
        return app.print_dry_run(data, text, _("stop nothing"))
    app.output(data, text)
    return 0


@click.command("plan")
@click.argument("name", metavar="JOB", shell_complete=complete_job)
@target_profile_and_set_options
@click.option("--machine", metavar="GPUSxGB", help="Another machine: 4x24 is four GPUs of 24 GB, 2x8x80 two nodes.")
@gpus_option
@click.option("--data", metavar="DIR", help="Data disk with earlier runs of JOB [RLBOX_DATA].")
@click.option("--price", metavar="DOLLARS", default="", help="Price of an hour: 1.60, or 1.60-2.40.")
@pass_app_with_shared_options
def print_job_needs_and_cost_and_require_fit(
    app: App,
    name: str,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    machine: str | None,
    gpus: str,
    data: str | None,
    price: str,
) -> int:
    """Show the resources that JOB needs: GPUs and their memory, host memory, disk, and whether the target has
    them.

    Then the hours and the cost of each stage. They come from its last passed run on the data disk with the same
    parameters. Without such a run, an assumption of the job is used and marked.

    Nothing is started or measured. Exit code 5: it does not fit, with the nearest setting that does.

    \b
    Examples:
      rlbox plan sft
      rlbox plan sft --profile rtx-4090-x4 --machine 4x24
    """
    command = RunCommand(profiles=profiles, settings=parse_set_options_last_wins(settings))
    measurements = load_passed_stage_measurements_or_empty(
        app, name, target or load_job(app.project, name).target, data
    )
    return print_needs_and_cost_and_require_fit(
        app, name, command, target or "", machine or "", gpus, measurements, price
    )
