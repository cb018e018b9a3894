"""`rlbox vast up` and `rlbox vast fetch`: a job on a rented machine, from renting to the results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.completers import complete_job
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import dry_run_option, force_option, pass_app_with_shared_options, target_profile_and_set_options
from rlbox.cli.vast_instances import (
    RentalOptions,
    confirm_and_rent,
    create,
    describe_rent_action,
    destroy,
    list_them,
    logs,
    plan_rental,
    render_instance_onstart,
    rental_options_as_terms,
    search,
    ssh,
    start,
    stop,
    wait_for_instance,
)
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.ssh.connection import SshConnection
    from rlbox.ssh.files import DownloadDirectory, RemoteFile
    from rlbox.vast.remote_job import RemoteJob
    from rlbox.vast.request import Instance


@dataclass(frozen=True, kw_only=True)
class FetchResult:
    """What was fetched: the files that count as fetched now, how many were brought, what could not be."""

    files: int
    brought: int
    summary: str
    troubles: tuple[str, ...]


@click.command()
@click.argument("number", metavar="ID", type=int)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder to fetch into [vast-ID, or the one used before].",
)
@click.option("--only", is_flag=True, help="Only the given PATH: the best checkpoint, the results.")
@dry_run_option
@pass_app_with_shared_options
def fetch(app: App, number: int, paths: tuple[str, ...], folder: Path | None, only: bool) -> int:
    """Fetch every run and every complete checkpoint of instance ID, and PATH on its data disk as well.

    A file counts as fetched once its sha256 matches the file on the instance. A repeated call fetches changed
    files and continues where it was cut off. DIR is then a data disk: `rlbox runs --data DIR`. Links are not
    fetched.

    \b
    Example:
      rlbox vast fetch --help
    """
    from rlbox.cli.vast_instances import load_instance_target_data_mount
    from rlbox.ssh.connection import SshConnection
    from rlbox.ssh.files import list_files
    from rlbox.system.files import require_writable_or_creatable_directory
    from rlbox.vast.api import find_rlbox_instance
    from rlbox.vast.instance import list_result_files, ssh_address
    from rlbox.vast.remote_job import strip_disk_prefix_or_raise

    if only and not paths:
        raise click.UsageError(_("--only downloads the named paths: add a PATH on the instance's data disk."))
    one = find_rlbox_instance(number)
    disk = load_instance_target_data_mount(app, one)
    more = [strip_disk_prefix_or_raise(path, disk) for path in paths]
    home = _choose_download_dir(number, folder)
    with app.collecting_refusals_if_dry_run("folder"):
        require_writable_or_creatable_directory(home.path, "another with --to")
    with SshConnection(ssh_address(one)) as connection:
        files, troubles = list_files(connection, disk, more) if only else list_result_files(connection, disk, more)
        if app.dry_run:
            return _would_fetch(app, home, files)
        done = fetch_files(app, connection, disk, home, files, troubles)
    data = {"instance": number, "folder": str(home.path), "files": done.files, "brought": done.brought}
    app.result({**data, "troubles": list(done.troubles)}, f"{home.path}  {done.summary}, proven")
    app.print_status(f"next: rlbox runs --data {home.path}; rlbox vast destroy {number}")
    return 1 if done.troubles else 0


def _choose_download_dir(instance_number: int, directory_option: Path | None = None) -> DownloadDirectory:
    """Return where what is fetched of an instance goes: the folder that is named, else the one used before."""
    from rlbox.vast.instance import load_recorded_download_directory

    home = load_recorded_download_directory(instance_number, directory_option.absolute() if directory_option else None)
    if not home.was_used and directory_option is None:
        home = load_recorded_download_directory(instance_number, Path(f"vast-{instance_number}").absolute())
    return home


def _would_fetch(app: App, home: DownloadDirectory, files: Sequence[RemoteFile]) -> int:
    from rlbox.amounts import decimal_size_text

    lacking = home.find_missing(files)
    lines = "\n".join(f"{decimal_size_text(file.size):>9}  {file.path}" for file in lacking)
    would = f"bring {_summary(lacking, files)}, to {home.path}"
    return app.planned({"files": [vars(file) for file in lacking]}, lines, would)


def fetch_files(
    app: App,
    connection: SshConnection,
    disk: str,
    home: DownloadDirectory,
    files: Sequence[RemoteFile],
    troubles: Sequence[str],
) -> FetchResult:
    """Bring home what is not there yet of the listed files; say what cannot be brought."""
    from rlbox.ssh.files import list_files, total_bytes
    from rlbox.system.progress import show_byte_progress

    lacking = home.find_missing(files)
    summary = _summary(lacking, files)
    app.print_status(f"bringing {summary}, to {home.path}")
    summed, more_troubles = list_files(connection, disk, [file.path for file in lacking], with_sums=True)
    with show_byte_progress(app, "fetch", total_bytes(summed)) as tell:
        home.fetch(connection, disk, summed, tell)
    for trouble in (*troubles, *more_troubles):
        app.print_status(f"not brought: {trouble}")
    return FetchResult(files=len(files), brought=len(summed), summary=summary, troubles=(*troubles, *more_troubles))


def _summary(lacking: Sequence[RemoteFile], files: Sequence[RemoteFile]) -> str:
    from rlbox.amounts import decimal_size_text
    from rlbox.ssh.files import total_bytes

    return f"{len(lacking)} of {len(files)} files, {decimal_size_text(total_bytes(lacking))}"


_QUICK_S, _MOST_BREAKS, _RETRY_PAUSE_S = 30.0, 5, 10.0


@dataclass(frozen=True, kw_only=True)
class _RentedRun:
    """What is done on instance `number`; `onstart` is its on-start script, `timeout` in seconds."""

    number: int
    remote_job: RemoteJob
    data: Sequence[tuple[Path, str]]
    env_file: Path | None
    onstart: str
    timeout: float
    detach: bool


@click.command()
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@target_profile_and_set_options
@rental_options_as_terms
@click.option(
    "--upload", "uploads", metavar="PATH[=DEST]", multiple=True, help="Copy to DEST on the data disk; may be repeated."
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
@force_option
@click.option("--detach", "-d", is_flag=True, help="Return once the run has started; fetch its results later.")
@click.option("--instance", "number", metavar="ID", type=int, help="Rent nothing new: continue with this instance.")
@dry_run_option
@pass_app_with_shared_options
def up(
    app: App,
    job: str,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    terms: RentalOptions,
    uploads: tuple[str, ...],
    env_file: Path | None,
    then: str,
    force: bool,
    detach: bool,
    number: int | None,
) -> int:
    """Rent a machine for JOB, bring your specs and data there, run it, and fetch its runs and checkpoints.

    Without an image of the target's own, a plain CUDA image is rented: rlbox is sent there and installs the locked
    packages. The run keeps going when the connection breaks or this command ends; one that was cut off by a stop of the
    instance resumes at its next start, one that failed does not. To continue, repeat the command with --instance ID.

    \b
    Examples:
      rlbox vast up sft --dry-run
      rlbox vast up sft --bid 1.2 --then stop --detach --dry-run
      rlbox vast up sft --image registry.example/me/vast-5090:1 --dry-run
    """
    from rlbox.cli.onstart import require_vast_target_by_name
    from rlbox.job.load import load_job
    from rlbox.planner.stack_check import require_consistent_stack
    from rlbox.vast.remote_job import RemoteJob

    name = target or load_job(app.project, job).target
    disk = require_vast_target_by_name(app, name, advise_target_option=True).disk.mount
    words = _run_words(profiles, settings, target, force=force)
    require_consistent_stack(app, name, force=force)
    remote_job = RemoteJob(job=job, disk=disk, words=words, then="stop" if then == "stop" else "keep")
    brought = _uploads(uploads)
    with app.collecting_refusals_if_dry_run("job"):
        _require_fit(app, job, profiles, settings, target or "", force=force)
    with app.collecting_refusals_if_dry_run("secrets"):
        _require_secrets(app, job, env_file)
    if number is None:
        deal = plan_rental(app, name, terms, job=job, ignore_stack_conflicts=force)
        if app.dry_run or deal.offer is None:
            then_run = f"and run {job} there" if detach else f"run {job} there, and fetch its runs and checkpoints"
            would = f"{describe_rent_action(deal, terms)}, {then_run}"
            return app.planned({**deal.as_json(), "job": job}, "\n".join(deal.lines()), would)
        number = confirm_and_rent(app, deal, deal.offer, terms)
    elif app.dry_run:
        return app.planned({"instance": number, "job": job}, "", f"run {job} on instance {number}")
    onstart = render_instance_onstart(app, name, uploads_rlbox=True, ignore_stack_conflicts=force)[1].field_text
    rented = _RentedRun(
        number=number,
        remote_job=remote_job,
        data=brought,
        env_file=env_file,
        onstart=onstart,
        timeout=terms.timeout,
        detach=detach,
    )
    return _carry_out(app, rented)


def _run_words(
    profiles: tuple[str, ...], settings: tuple[str, ...], target: str | None, *, force: bool
) -> tuple[str, ...]:
    """Return the options of `rlbox run` on the instance."""
    words = [word for profile in profiles for word in ("--profile", profile)]
    words += [word for setting in settings for word in ("--set", setting)]
    words += ["--target", target] if target else []
    return (*words, *(["--force"] if force else []))


def _carry_out(app: App, rented: _RentedRun) -> int:
    """Do all that is to be done on a rented instance, over a connection that is made again when it breaks.

    Whatever cuts this, the instance is named, and the run goes on once it has started.
    """
    from rlbox.errors import Interrupted
    from rlbox.ssh.connection import ConnectionLost, SshConnection
    from rlbox.vast.instance import ssh_address

    number, run, breaks = rented.number, "", 0
    try:
        instance = wait_for_instance(app, number, rented.timeout)
        while True:
            with ExitStack() as stack:
                connection = stack.enter_context(SshConnection(ssh_address(instance), rented.timeout))
                opened = time.monotonic()
                try:
                    run = run or _start(app, connection, rented)
                    return _left(app, instance, rented, run) if rented.detach else _finish(app, connection, rented, run)
                except ConnectionLost as error:
                    breaks = breaks + 1 if time.monotonic() - opened < _QUICK_S else 1
                    if breaks == _MOST_BREAKS:
                        raise
                    app.print_status(f"{error.what}; connecting again")
            instance = _wait_again(app, number, rented.timeout)
    except (Exception, KeyboardInterrupt) as error:
        app.print_status(f"instance {number} is running and billed; to continue, repeat with --instance {number}")
        if isinstance(error, KeyboardInterrupt):
            if run:
                step = _(
                    "rlbox vast logs {number} -f; at its end rlbox vast fetch {number}, rlbox vast destroy {number}"
                ).format(number=number)
                raise Interrupted(_("left: run {run} goes on").format(run=run), next_step=step) from None
            raise Interrupted("left", next_step=f"rlbox vast destroy {number}") from None
        raise


def _start(app: App, connection: SshConnection, rented: _RentedRun) -> str:
    """Bring all that the job needs, and start it, unless all that was done before; return its run."""
    from rlbox.system.progress import show_byte_progress
    from rlbox.vast.instance import (
        start_agent_and_await_run,
        sync_rlbox_unless_in_image,
        upload_job,
        upload_to_data_disk,
        wait_for_onstart,
    )

    number, remote_job = rented.number, rented.remote_job
    sync_rlbox_unless_in_image(connection, remote_job, app.project, rented.onstart, number, app.print_status)
    wait_for_onstart(connection, remote_job.disk, number, rented.timeout, app.print_status)
    total = sum(one.stat().st_size for path, __ in rented.data for one in _files(path))
    with show_byte_progress(app, "upload", total) as tell:
        upload_to_data_disk(connection, remote_job, rented.data, tell)
    upload_job(connection, remote_job, app.project, rented.env_file, number)
    return start_agent_and_await_run(connection, remote_job, number)


def _left(app: App, instance: Instance, rented: _RentedRun, run: str) -> int:
    number = rented.number
    app.result({"instance": number, "run": run, "ssh": instance.ssh_command}, f"{number}  {run}")
    app.print_status(
        f"next: rlbox vast logs {number} -f; at its end rlbox vast fetch {number}, rlbox vast destroy {number}"
    )
    return 0


def _finish(app: App, connection: SshConnection, rented: _RentedRun, run: str) -> int:
    """Follow the run to its end, fetch what it made, and return its exit code."""
    from rlbox.vast.instance import list_result_files, prevent_instance_stop, wait_for_onstart, wait_for_run

    number, remote_job = rented.number, rented.remote_job
    wait_for_onstart(
        connection, remote_job.disk, number, rented.timeout, app.print_status
    )  # after a stop of the instance it takes a while
    app.print_status(f"run {run} goes on when this command ends; its logs: rlbox vast logs {number} -f")
    end = wait_for_run(connection, remote_job, run, app.print_status)
    with prevent_instance_stop(connection, remote_job):
        home = _choose_download_dir(number)
        files, troubles = list_result_files(connection, remote_job.disk)
        done = fetch_files(app, connection, remote_job.disk, home, files, troubles)
    state, cause, code = str(end.get("state", "")), str(end.get("cause", "")), int(end.get("exit_code") or 0)
    if cause:
        app.print_status(f"cause: {cause}")
    data = {"instance": number, "run": run, "state": state, "cause": cause, "folder": str(home.path)}
    told = f"{number}  {run}  {state}: {home.path}  {done.summary}, proven"
    app.result({**data, "files": done.files, "troubles": list(done.troubles)}, told)
    app.print_status(f"next: rlbox report --data {home.path}; rlbox vast destroy {number}")
    return code or (1 if done.troubles else 0)


def _wait_again(app: App, number: int, timeout: float) -> Instance:
    """Wait until an instance runs again that could not be reached; this machine may have no network meanwhile.

    Raises
    ------
    WorkFailed
        Somebody stopped it.
    """
    from rlbox.errors import NodeError, WorkFailed
    from rlbox.vast.api import find_rlbox_instance

    end = time.monotonic() + timeout
    while True:
        try:
            if find_rlbox_instance(number).intended_status == "stopped":
                step = f"rlbox vast start {number}, rlbox vast fetch {number}"
                raise WorkFailed(_("instance {number} was stopped").format(number=number), next_step=step)
            return wait_for_instance(app, number, timeout, is_restart=True)
        except NodeError as error:
            if time.monotonic() >= end:
                raise
            app.print_status(f"{error.what}; trying again")
            time.sleep(_RETRY_PAUSE_S)


def _uploads(options: Sequence[str]) -> list[tuple[Path, str]]:
    """Return files and folders of this machine with their places below the data disk."""
    from rlbox.errors import SpecError
    from rlbox.vast.remote_job import strip_disk_prefix_or_raise

    found = []
    for text in options:
        source, __, goal = text.partition("=")
        path = Path(source)
        if not path.exists():
            raise SpecError(
                _("--upload {text}: there is no {source}").format(text=text, source=source),
                next_step=_("name a file or a folder of this machine"),
            )
        found.append((path, strip_disk_prefix_or_raise(goal or path.resolve().name, "/")))
    return found


def _files(path: Path) -> list[Path]:
    return [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]


def _require_fit(
    app: App, job: str, profiles: tuple[str, ...], settings: tuple[str, ...], target: str, *, force: bool
) -> None:
    """Raise `SpecError` when no run can be planned from the job, `NodeError` when it does not fit its target."""
    from rlbox.job.load import load_job
    from rlbox.job.params import parse_settings_last_wins, resolve_params
    from rlbox.planner.fit import check_fit, load_declared_capacity, require_fit
    from rlbox.planner.suggest import RunCommand
    from rlbox.run.inputs import plan_container_run, require_matching_source

    wish = RunCommand(command_words=("vast", "up", job), profiles=profiles, settings=parse_settings_last_wins(settings))
    loaded = load_job(app.project, job)
    values, name = resolve_params(loaded, profiles, wish.settings), target or loaded.target
    require_matching_source(app, loaded, values, is_local_run=False, accept_other_version=False)
    plan_container_run(loaded, values, "/data", f"{job}-PLAN", "here", name, tuple(map(str, loaded.secrets)))
    fit = check_fit(loaded, values, load_declared_capacity(app, name, ""))
    require_fit(app, loaded, fit, wish, force=force)


def _require_secrets(app: App, job: str, env_file: Path | None) -> None:
    """Raise `SpecError` when the job wants secrets and no file has them, or the file is no text."""
    from rlbox.errors import SpecError
    from rlbox.job.load import load_job

    if env_file is not None:
        try:
            env_file.read_text("utf-8")  # that it cannot be read is told before anything costs money
        except (OSError, ValueError) as error:
            raise SpecError(
                _("the file of --env-file cannot be read: {error}").format(error=error),
                where=str(env_file),
                next_step=_("name a file of text that you may read"),
            ) from error
    elif wanted := load_job(app.project, job).secrets:
        raise SpecError(
            _("job {job} wants secrets: {names}").format(job=job, names=", ".join(map(str, wanted))),
            next_step=_("--env-file FILE with a line NAME=VALUE for each"),
        )


@click.group(cls=TranslatedGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --dry-run, --project DIR.")
def vast() -> None:
    """Rent a machine on vast.ai, run a job there, download the results, and stop the machine.

    The API key is read from VAST_API_KEY, or from the file of the platform's own client.

    \b
    Examples:
      rlbox vast search vast-5090 --dry-run
      rlbox vast up sft --image registry.example/me/vast-5090:1 --dry-run
    """


for command in (up, list_them, logs, ssh, stop, start, fetch, destroy, search, create):
    vast.add_command(command)
