"""`rlbox run`, `attach`, `stop` and `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlbox.amounts import exact_duration_text
from rlbox.app import App
from rlbox.cli.completers import complete_job, complete_run
from rlbox.cli.options import (
    dry_run_option,
    gpus_option,
    pass_app_with_shared_options,
    run_place_option,
    target_and_data_options,
    target_profile_and_set_options,
)
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.run.data_disk import create_lock_owner, open_existing_store_or_exec_remotely, reconcile_runs

if TYPE_CHECKING:
    from rlbox.run.backend import Place, RunOptions


@click.command()
@click.argument("name", metavar="[JOB]", required=False, shell_complete=complete_job)
@target_profile_and_set_options
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
@click.option("--from", "first_stage", default="", metavar="STAGE", help="Start with this stage.")
@click.option(
    "--force",
    is_flag=True,
    help="Start though stages have not passed, the job does not fit, or stack or source do not match; recorded.",
)
@click.option(
    "--allow-unauthenticated",
    "open",
    is_flag=True,
    help="Run even if anyone who can reach its ports can execute code in it; this is recorded.",
)
@click.option("--build", is_flag=True, help="First start an engine and build the image, where they are missing.")
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
def run(
    app: App,
    name: str | None,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    place: Place,
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
    from rlbox.job.params import parse_settings_last_wins
    from rlbox.run.backend import CLUSTER, RunOptions

    if (nodes or cluster) and place != CLUSTER:
        raise click.UsageError(_("--nodes and --cluster are for --place cluster."))
    options = RunOptions(
        place=place,
        target=target,
        data=data,
        profiles=profiles,
        param_settings=parse_settings_last_wins(settings),
        env_file=env_file,
        gpus=gpus,
        detach=detach,
        first_stage=first_stage,
        force=force,
        allow_unauthenticated=open,
        build_missing=build,
        publish=publish,
        nodes=nodes,
        cluster=cluster,
        shift_ports=shift_ports,
    )
    if run:
        from rlbox.run.start import resume_run

        _refuse_with_resume(name, options)
        return resume_run(app, run, options)
    if not name:
        raise SpecError(
            _("no job is named"), next_step=_("choose one of: {jobs}").format(jobs=", ".join(app.project.jobs()))
        )
    from rlbox.run.start import start_run

    return start_run(app, name, options)


def _refuse_with_resume(job: str | None, options: RunOptions) -> None:
    fixed = {
        "JOB": job,
        "--profile": options.profiles,
        "--build": options.build_missing,
        "--shift-ports": options.shift_ports,
    }
    for word, value in fixed.items():
        if value:
            raise SpecError(
                _("--resume takes no {word}: the run has its own").format(word=word), next_step="rlbox run --resume RUN"
            )


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@target_and_data_options
@pass_app_with_shared_options
def attach(app: App, name: str | None, target: str, data: str | None) -> int:
    """Watch RUN (by default the latest) until it ends; Ctrl-C leaves it alone. The exit code is the run's.

    \b
    Examples:
      rlbox attach
      rlbox attach smoke-20260101
    """
    from rlbox.run.launch import catch_stop_signals, reconcile_and_print_result, show_progress

    run_store = open_existing_store_or_exec_remotely(app, target, data)
    reconcile_runs(app, run_store)
    run_dir = run_store.find_run(name)
    plan = run_store.load_plan_preferring_host_record(run_dir)
    with catch_stop_signals() as left:
        show_progress(app, run_dir, lambda: not left.name and run_store.is_running(plan.run_id))
        if left.name and run_store.is_running(plan.run_id):
            app.print_status(f"left alone: run {plan.run_id} goes on (rlbox stop {plan.run_id} ends it)")
            return 0
    return reconcile_and_print_result(app, run_store, run_dir, plan, create_lock_owner("the end of a run"))


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--grace", default=20, metavar="SECONDS", show_default=True, help="Until it is killed.")
@target_and_data_options
@dry_run_option
@pass_app_with_shared_options
def stop(app: App, name: str | None, grace: int, target: str, data: str | None) -> int:
    """Stop RUN (by default the one in progress): end its stages in order, then kill the remaining processes.

    Stopping a run that has ended changes nothing and succeeds.

    \b
    Examples:
      rlbox stop
      rlbox stop smoke-20260101 --grace 60
    """
    from rlbox.cli.runs import run_state_summary_json
    from rlbox.run.launch import stop_run
    from rlbox.system.identity import get_user_name

    run_store = open_existing_store_or_exec_remotely(app, target, data)
    found = reconcile_runs(app, run_store)
    going = [*found.alive, *([found.lock_owner.run] if found.lock_owner and found.lock_owner.run else [])]
    if name is None and not going:
        none: dict[str, Any] = {"run": "", "state": "", "stopped": False, "data": str(run_store.data_dir)}
        if app.dry_run:
            return app.planned(none, f"no run is in progress on {run_store.data_dir}", "stop nothing")
        app.result(none, f"no run is in progress on {run_store.data_dir}")
        return 0
    run_dir = run_store.find_run(going[0] if name is None else name)
    if run_dir.name not in going:
        row = run_state_summary_json(run_store, run_dir, found)
        ended = {"run": row["run"], "state": row["state"], "stopped": False}
        app.print_status(f"run {row['run']} has already ended: there is nothing to stop")
        if app.dry_run:
            return app.planned(ended, f"{row['run']} {row['state']}", "stop nothing")
        app.result(ended, f"{row['run']} {row['state']}")
        return 0
    if app.dry_run:
        told = {"run": run_dir.name, "state": "running", "stopped": False, "grace_s": grace}
        would = f"ask run {run_dir.name} to stop, and kill what is left of it after {exact_duration_text(grace)}"
        return app.planned(told, "", would)
    app.print_status(f"stopping run {run_dir.name}")
    stop_run(
        run_store,
        run_dir,
        run_store.load_plan_preferring_host_record(run_dir),
        user=get_user_name(),
        via="rlbox stop",
        grace_s=grace,
    )
    row = run_state_summary_json(run_store, run_dir, reconcile_runs(app, run_store))
    app.result({"run": row["run"], "state": row["state"], "stopped": True}, f"{row['run']} {row['state']}")
    return 0


@click.command()
@click.argument("name", metavar="JOB", shell_complete=complete_job)
@target_profile_and_set_options
@click.option("--machine", metavar="GPUSxGB", help="Another machine: 4x24 is four GPUs of 24 GB, 2x8x80 two nodes.")
@gpus_option
@click.option("--data", metavar="DIR", help="Data disk with earlier runs of JOB [RLBOX_DATA].")
@click.option("--price", metavar="DOLLARS", default="", help="Price of an hour: 1.60, or 1.60-2.40.")
@pass_app_with_shared_options
def plan(
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
    parameters, scaled to other numbers of steps. Without such a run, an assumption of the job is used and
    marked.

    Nothing is started or measured. Exit code 5: it does not fit, with the nearest setting that does.

    \b
    Examples:
      rlbox plan sft
      rlbox plan sft --profile rtx-4090-x4 --machine 4x24
      rlbox plan xdan --set train_batch=256
      rlbox plan sft --price 1.60-2.40
    """
    from rlbox.job.load import load_job
    from rlbox.job.params import parse_settings_last_wins
    from rlbox.planner.fit import print_plan_and_require_fit
    from rlbox.planner.suggest import RunCommand
    from rlbox.run.history import load_stage_durations

    place = target or load_job(app.project, name).target
    return print_plan_and_require_fit(
        app,
        name,
        RunCommand(profiles=profiles, settings=parse_settings_last_wins(settings)),
        target or "",
        machine or "",
        gpus,
        load_stage_durations(app, name, place, data),
        price,
    )
