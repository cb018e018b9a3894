"""`rlbox vast up`: rent a machine for a job, bring what it needs, start it, and leave it to itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_job
from rlbox.cli.options import dry_run, job_options, shared, stack_option
from rlbox.cli.rented.vast_create import Terms, plan_deal, rent, rent_options, wait_for, would_rent
from rlbox.printable import isolated

if TYPE_CHECKING:
    from rlbox.vast.stay import Stay


@click.command()
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@job_options
@rent_options
@click.option(
    "--data", "data", metavar="PATH[=GOAL]", multiple=True, help="Copy this to GOAL on the data disk; may be repeated."
)
@click.option(
    "--env-file", metavar="FILE", type=click.Path(path_type=Path), help="Copy the job's secrets there, as .env."
)
@click.option(
    "--then",
    type=click.Choice(["keep", "stop"]),
    default="keep",
    help="What to do with the instance when the run ends.",
)
@click.option(
    "--notify",
    metavar="WHAT",
    default="",
    help="Webhook URL, or command on the instance, that is told of stalls and of the end.",
)
@stack_option
@click.option("--instance", "number", metavar="ID", type=int, help="Rent nothing new: continue with this instance.")
@dry_run
@shared
def up(
    app: App,
    job: str,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    terms: Terms,
    data: tuple[str, ...],
    env_file: Path | None,
    then: str,
    notify: str,
    force: bool,
    number: int | None,
) -> int:
    """Rent a machine for JOB, bring your specs and data there, start the run, and let it run unattended.

    The run keeps going when the connection breaks; one that was cut off by a stop of the instance resumes at its next
    start, one that failed does not. When this command itself is cut off, repeat it with --instance ID.

    \b
    Examples:
      rlbox vast up sft --image registry.example/me/vast-5090:1 --dry-run
      rlbox vast up sft --bid 1.2 --then stop --image registry.example/me/vast-5090:1 --dry-run
    """
    from rlbox.cli.rented.onstart import require_rented
    from rlbox.job.load import load_job
    from rlbox.stack.act.check import require_stack
    from rlbox.vast.act.instance import project_files
    from rlbox.vast.stay import Stay, check_notice

    name = target or load_job(app.project, job).target
    disk = require_rented(app, name, job).disk.mount
    words = [word for profile in profiles for word in ("--profile", profile)]
    words += [word for setting in settings for word in ("--set", setting)]
    words += ["--target", target] if target else []
    words += ["--force"] if force else []
    require_stack(app, name, force=force)
    with app.checking("notice"):
        check_notice(notify)
    stay = Stay(job=job, disk=disk, words=tuple(words), then="stop" if then == "stop" else "keep", notify=notify)
    brought = _brought(data)
    with app.checking("job"):
        _require_fit(app, job, profiles, settings, target or "", force=force)
        project_files(app.project)  # that they are more than specs is told before anything costs money
    with app.checking("secrets"):
        _require_secrets(app, job, env_file)
    if number is None:
        deal = plan_deal(app, name, terms, job=job)
        if app.dry_run or deal.offer is None:
            would = f"{would_rent(deal, terms)}, and run {job} there"
            return app.planned({**deal.as_json(), "job": job}, "\n".join(deal.lines()), would)
        number = rent(app, deal, deal.offer, terms)
    elif app.dry_run:
        return app.planned({"instance": number, "job": job}, "", f"run {job} on instance {number}")
    return _begin(app, number, stay, brought, env_file, terms.timeout)


def _begin(
    app: App, number: int, stay: Stay, brought: Sequence[tuple[Path, str]], env_file: Path | None, timeout: float
) -> int:
    """Bring all that the job needs to a rented instance, and start it; whatever cuts this, the instance is named."""
    from rlbox.errors import Interrupted
    from rlbox.files.act.progress import bytes_view
    from rlbox.ssh.connection import Connection
    from rlbox.vast.act.instance import address_of, bring_data, bring_stay, start_keeper, wait_ready

    try:
        instance = wait_for(app, number, timeout)
        with Connection(address_of(instance), timeout) as connection:
            wait_ready(connection, stay.disk, number, timeout, app.say)
            total = sum(one.stat().st_size for path, _ in brought for one in _files(path))
            with bytes_view(app, "upload", total) as tell:
                bring_data(connection, stay, brought, tell)
            bring_stay(connection, stay, app.project, env_file, number)
            run = start_keeper(connection, stay, number)
    except (Exception, KeyboardInterrupt) as error:
        app.say(f"instance {number} is running and billed; to continue, repeat with --instance {number}")
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted("left", next_step=f"rlbox vast destroy {number}") from None
        raise
    app.result({"instance": number, "run": run, "ssh": instance.ssh}, f"{number}  {isolated(run)}")
    app.say(f"next: rlbox vast logs {number} -f; at its end rlbox vast fetch {number}, rlbox vast destroy {number}")
    return 0


def _brought(data: Sequence[str]) -> list[tuple[Path, str]]:
    """Return files and folders of this machine with their places below the data disk."""
    from rlbox.errors import SpecError
    from rlbox.vast.stay import below

    found = []
    for text in data:
        source, _, goal = text.partition("=")
        path = Path(source)
        if not path.exists():
            raise SpecError(f"--data {text}: there is no {source}", next_step="name a file or a folder of this machine")
        found.append((path, below(goal or path.resolve().name, "/")))
    return found


def _files(path: Path) -> list[Path]:
    return [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]


def _require_fit(
    app: App, job: str, profiles: tuple[str, ...], settings: tuple[str, ...], target: str, *, force: bool
) -> None:
    """Raise `SpecError` when no run can be planned from the job, `NodeError` when it does not fit its target."""
    from rlbox.job.load import load_job
    from rlbox.job.params import parse_settings, plan_values
    from rlbox.planner.act.check import declared_room, fit_of, require_fit
    from rlbox.planner.nearest import Asked
    from rlbox.run.inputs import check_source, container_plan

    wish = Asked(start=("vast", "up", job), profiles=profiles, settings=parse_settings(settings))
    loaded = load_job(app.project, job)
    values, name = plan_values(loaded, profiles, wish.settings), target or loaded.target
    check_source(app, loaded, values, here=False, force=False)
    container_plan(loaded, values, "/data", f"{job}-PLAN", "here", name, tuple(map(str, loaded.secrets)))
    fit = fit_of(loaded, values, declared_room(app, name, ""))
    require_fit(app, loaded, fit, wish, force=force)


def _require_secrets(app: App, job: str, env_file: Path | None) -> None:
    """Raise `SpecError` when the job wants secrets and no file has them, or the file cannot be read."""
    from rlbox.errors import SpecError
    from rlbox.job.load import load_job

    if env_file is not None and not env_file.is_file():
        raise SpecError("the file of --env-file is not there", where=str(env_file), next_step="name one that is")
    try:
        _ = env_file and env_file.read_text("utf-8")  # that it cannot be read is told before anything costs money
    except (OSError, ValueError) as error:
        what = f"the file of --env-file cannot be read: {getattr(error, 'strerror', '') or error}"
        raise SpecError(what, where=str(env_file), next_step="name a file of text that you may read") from error
    if (wanted := load_job(app.project, job).secrets) and env_file is None:
        names = ", ".join(map(str, wanted))
        raise SpecError(
            f"job {job} wants secrets: {names}", next_step="--env-file FILE with a line NAME=VALUE for each"
        )
