"""`rlbox vast`: rent, list and delete instances of vast.ai, and run a job on one."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rlbox.amounts import align_translated, decimal_size_text
from rlbox.app import App
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import (
    NON_NEGATIVE,
    complete_job,
    confirm_unless_yes,
    dry_run_option,
    force_option,
    pass_app_with_shared_options,
    target_argument,
    target_profile_and_set_options,
    yes_option,
)
from rlbox.errors import Interrupted, MachineError, SpecError, WorkFailed
from rlbox.i18n import _, join, ngettext, translate
from rlbox.job.job import load_job
from rlbox.job.params import parse_set_options_last_wins, resolve_params
from rlbox.planner.fit import RunCommand, check_fit, load_declared_capacity, require_fit
from rlbox.planner.stack_check import require_consistent_stack_or_forced_conflict
from rlbox.run.inputs import plan_container_run, require_matching_source_if_set
from rlbox.ssh.connection import SshConnection, SshConnectionFailed, run_in_foreground_or_open_shell
from rlbox.ssh.files import DownloadDirectory, Listing, list_remote_files, total_bytes
from rlbox.system.files import require_writable_or_creatable_directory
from rlbox.system.progress import show_byte_progress
from rlbox.target.target import load_target
from rlbox.vast.api import (
    Instance,
    create_instance,
    destroy_instance,
    list_instances,
    request_instance_state,
    require_api_key,
    require_rlbox_instances,
    search_raw_offers,
    wait_until_instance_runs,
)
from rlbox.vast.instance import (
    JobUpload,
    ensure_job_uploaded_and_run_started,
    keep_agent_from_stopping_instance,
    list_run_and_complete_checkpoint_files,
    require_ssh_address,
    reuse_or_choose_download_directory,
    start_agent_and_await_run_end,
    wait_for_onstart_and_print_changes,
)
from rlbox.vast.offers import Offer, format_offer_table, make_offer_filter, require_fitting_offers
from rlbox.vast.remote_job import RemoteJob, format_shell_setting_tool_to_rlbox_dir, strip_disk_prefix_or_raise
from rlbox.vast.rental import (
    RentalOptions,
    RentalQuote,
    load_and_require_vast_target,
    parse_docker_options_to_vast_env,
    render_onstart_with_job_agent,
    require_image_and_offer_unless_dry_run,
)

_RETRY_PAUSE_S = 10.0


@click.group(cls=TranslatedGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --dry-run, --project DIR.")
def vast() -> None:
    """Rent a machine on vast.ai, run a job there, download the results, and stop the machine.

    The API key is read from VAST_API_KEY, or from the file of the platform's own client.

    \b
    Examples:
      rlbox vast search vast-5090 --dry-run
    """


_price_option = click.option(
    "--price", type=NON_NEGATIVE, default=0.0, help="Highest price per hour, in dollars [vast.max_price]."
)


@vast.command("search")
@target_argument
@_price_option
@dry_run_option
@pass_app_with_shared_options
def print_offers_that_fit_target(app: App, name: str, price: float) -> int:
    """List the offers that fit TARGET, the cheapest first, priced with its disk.

    Exit code 1: no offer fits; the missing resources of the nearest offers are listed.

    \b
    Examples:
      rlbox vast search vast-5090 --dry-run
    """
    target = load_and_require_vast_target(app, name)
    needs = make_offer_filter(target, parse_docker_options_to_vast_env(target), price)
    data = {"target": name, "query": needs.to_query()}
    if app.dry_run:
        with app.collecting_refusals_if_dry_run("API key"):
            require_api_key()
        return app.print_dry_run(
            {**data, "request": needs.to_search_body(), "offers": []}, needs.to_query(), _("ask vast.ai for its offers")
        )
    offers = require_fitting_offers(search_raw_offers(needs), needs)
    app.output({**data, "offers": [offer.as_json() for offer in offers]}, format_offer_table(offers))
    app.print_next(f"rlbox vast create {name} --offer {offers[0].id} --image IMAGE")
    return 0


_timeout_option = click.option(
    "--timeout",
    type=NON_NEGATIVE,
    default=1800.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait until it runs; 0: do not wait.",
)


def _rental_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        yes_option,
        _timeout_option,
        _price_option,
        click.option("--image", metavar="IMAGE", default="", help="Image that the platform pulls [vast.image]."),
        click.option("--offer", metavar="ID", type=int, help="Take exactly this offer [the cheapest]."),
    ):
        function = option(function)
    return function


@vast.command("create")
@target_argument
@_rental_options
@dry_run_option
@pass_app_with_shared_options
def rent_instance_after_confirmation(app: App, name: str, **given: Any) -> int:
    """Create an instance for TARGET with its on-start script, after printing the price.

    Nothing is rented without a price limit. With --dry-run nothing is rented. Without an API key, the dry run
    uses the price limit as the price, and a real run would fail.

    \b
    Examples:
      rlbox vast create vast-5090 --image registry.example/me/vast-5090:1 --dry-run
    """
    options = RentalOptions(**given)
    quote = require_image_and_offer_unless_dry_run(app, load_and_require_vast_target(app, name), options)
    if app.dry_run or quote.offer is None:
        return app.print_dry_run(quote.as_json(), quote.format(), _describe_rent(quote, options))
    created = _confirm_and_rent(app, quote, quote.offer, options)
    ssh = _wait_for_instance(app, created, options.timeout).ssh_command_or_empty if options.timeout else ""
    app.output({**quote.as_json(), "created": True, "instance": created, "ssh": ssh}, f"{created}  {ssh}".rstrip())
    app.print_next(ssh or "rlbox vast ls")
    return 0


def _describe_rent(quote: RentalQuote, options: RentalOptions) -> str:
    if quote.offer is None:
        return _("rent")
    text = _("rent offer {offer}, without asking") if options.yes else _("rent offer {offer}, after confirmation")
    return text.format(offer=quote.offer.id)


def _confirm_and_rent(app: App, quote: RentalQuote, offer: Offer, options: RentalOptions) -> int:
    for line in quote.format_offer_and_price_lines():
        app.print_status(line)
    question = _("rent offer {offer} for target {target}").format(offer=offer.id, target=quote.request.target)
    confirm_unless_yes(app, options.yes, question)
    created = create_instance(offer.id, quote.request)
    app.print_status(
        _("instance {created} is created and billed until: rlbox vast destroy {created}").format(created=created)
    )
    return created


def _wait_for_instance(app: App, instance_id: int, timeout_s: float, *, is_restart: bool = False) -> Instance:
    """Wait until an instance runs; Ctrl-C leaves it."""
    try:
        return wait_until_instance_runs(instance_id, timeout_s, app.print_status, restarted=is_restart)
    except KeyboardInterrupt:
        unfetched = "" if is_restart else " --unfetched"  # nothing is on its disk yet
        what = _("instance {number} is still running and billed").format(number=instance_id)
        raise Interrupted(what, next_step=f"rlbox vast destroy {instance_id}{unfetched}") from None


_instance_argument = click.argument("number", metavar="ID", type=int)


def _load_disk_mount(app: App, instance: Instance) -> str:
    return load_target(app.project, instance.target_name_if_rlbox_made).target.disk.mount


@vast.command("ls")
@pass_app_with_shared_options
def list_rlbox_instances(app: App) -> None:
    """List the instances that rlbox created, with their prices; instances of other users are not shown."""
    own = [instance for instance in list_instances() if instance.is_rlbox_made]
    rows = [(str(row.id), row.label, row.status, f"{row.price:.3f}", row.ssh_command_or_empty) for row in own]
    data = [
        {"id": row.id, "label": row.label, "status": row.status, "price": row.price, "ssh": row.ssh_command_or_empty}
        for row in own
    ]
    head = ("id", _("label"), _("state"), _("$/h"), _("reached by"))
    app.output({"instances": data}, "\n".join(align_translated([head, *rows])) if rows else _("no instance"))


@vast.command("ssh", context_settings={"ignore_unknown_options": True})
@_instance_argument
@click.argument("words", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@pass_app_with_shared_options
def open_instance_shell_or_run_command(app: App, number: int, words: tuple[str, ...]) -> int:
    """Open a shell on instance ID, or run one command there and return its exit code."""
    address = require_ssh_address(*require_rlbox_instances([number]))
    return run_in_foreground_or_open_shell(address, words[0] if len(words) == 1 else shlex.join(words))


@vast.command("logs")
@_instance_argument
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends.")
@pass_app_with_shared_options
def print_latest_run_logs_of_instance(app: App, number: int, follow: bool) -> int:
    """Print the logs of the latest run on instance ID."""
    (instance,) = require_rlbox_instances([number])
    disk = _load_disk_mount(app, instance)
    command = f"{format_shell_setting_tool_to_rlbox_dir(disk)}; exec $tool/bin/rlbox logs --data {shlex.quote(disk)}"
    return run_in_foreground_or_open_shell(require_ssh_address(instance), command + " -f" * follow)


@vast.command("stop")
@_instance_argument
@dry_run_option
@pass_app_with_shared_options
def stop_instance_keeping_disk(app: App, number: int) -> int:
    """Stop instance ID: only its disk, which is kept, is billed. A run in progress is cut off; `start` resumes it."""
    (instance,) = require_rlbox_instances([number])
    if app.dry_run:
        text = f"{number}  {instance.label}  {instance.status}"
        return app.print_dry_run({"instance": number}, text, _("stop instance {number}").format(number=number))
    request_instance_state(number, "stopped")
    app.output({"instance": number, "state": "stopped"}, _("{number}  stops").format(number=number))
    step = _("rlbox vast start {number}, or rlbox vast destroy {number}: its disk is billed until then")
    app.print_next(step.format(number=number))
    return 0


@vast.command("start")
@_instance_argument
@_timeout_option
@dry_run_option
@pass_app_with_shared_options
def start_instance_and_wait_until_ready(app: App, number: int, timeout: float) -> int:
    """Start instance ID again, and wait until it is ready; an interrupted job of `vast up` resumes automatically."""
    (instance,) = require_rlbox_instances([number])
    if app.dry_run:
        text = f"{number}  {instance.label}  {instance.status}"
        return app.print_dry_run({"instance": number}, text, _("start instance {number}").format(number=number))
    request_instance_state(number, "running")
    ready = _wait_for_instance(app, number, timeout, is_restart=True)
    with SshConnection(require_ssh_address(ready), timeout) as connection:
        wait_for_onstart_and_print_changes(app, connection, _load_disk_mount(app, instance), number, timeout)
    app.output(
        {"instance": number, "state": "running", "ssh": ready.ssh_command_or_empty},
        f"{number}  {ready.ssh_command_or_empty}",
    )
    app.print_next(f"rlbox vast logs {number} -f")
    return 0


@vast.command("fetch")
@_instance_argument
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder to fetch into [vast-ID, or the one used before].",
)
@dry_run_option
@pass_app_with_shared_options
def fetch_runs_and_checkpoints_from_instance(app: App, number: int, paths: tuple[str, ...], folder: Path | None) -> int:
    """Fetch every run and every complete checkpoint of instance ID, or only PATH on its data disk.

    A file counts as fetched once its sha256 matches the file on the instance. A repeated call fetches changed
    files and continues where it was cut off. DIR is then a data disk: `rlbox runs --data DIR`. Links are not
    fetched.
    """
    (instance,) = require_rlbox_instances([number])
    disk = _load_disk_mount(app, instance)
    roots = [strip_disk_prefix_or_raise(path, disk) for path in paths]
    home = reuse_or_choose_download_directory(number, folder)
    with app.collecting_refusals_if_dry_run("folder"):
        require_writable_or_creatable_directory(home.path, "--to")
    with SshConnection(require_ssh_address(instance)) as connection:
        listing = (
            list_remote_files(connection, disk, roots)
            if roots
            else list_run_and_complete_checkpoint_files(connection, disk)
        )
        if app.dry_run:
            missing = home.find_unverified(listing.files)
            lines = "\n".join(f"{decimal_size_text(file.size):>9}  {file.path}" for file in missing)
            would = _("bring {summary}, to {path}").format(summary=_summarize(home, listing), path=home.path)
            return app.print_dry_run({"files": [asdict(file) for file in missing]}, lines, would)
        fetched, summary = _fetch_files(app, connection, disk, home, listing)
    text = _("{path}  {summary}, proven").format(path=home.path, summary=summary)
    app.output({"instance": number, **fetched}, text)
    app.print_next(f"rlbox runs --data {home.path}; rlbox vast destroy {number}")
    return 1 if fetched["troubles"] else 0


def _summarize(home: DownloadDirectory, listing: Listing) -> str:
    missing = home.find_unverified(listing.files)
    text = _("{count} of {total} files, {size}")
    size = decimal_size_text(total_bytes(missing))
    return text.format(count=len(missing), total=len(listing.files), size=size)


def _fetch_files(
    app: App, connection: SshConnection, disk: str, home: DownloadDirectory, listing: Listing
) -> tuple[dict[str, Any], str]:
    summary = _summarize(home, listing)
    app.print_status(_("bringing {summary}, to {path}").format(summary=summary, path=home.path))
    missing = [file.path for file in home.find_unverified(listing.files)]
    summed, errors = list_remote_files(connection, disk, missing, with_sha256=True)
    with show_byte_progress(app, "fetch", total_bytes(summed)) as report_bytes:
        home.fetch_verified(connection, disk, summed, report_bytes)
    troubles = [*listing.errors, *errors]
    for trouble in troubles:
        app.print_status(_("not brought: {trouble}").format(trouble=trouble))
    data = {"folder": str(home.path), "files": len(listing.files), "brought": len(summed), "troubles": troubles}
    return data, summary


@vast.command("destroy")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=int)
@click.option("--unfetched", is_flag=True, help="Destroy even if runs or checkpoints have not been fetched.")
@yes_option
@dry_run_option
@pass_app_with_shared_options
def destroy_instances_or_refuse_if_unfetched(app: App, ids: tuple[int, ...], unfetched: bool, yes: bool) -> int:
    """Destroy instances with everything on their disks; only those with a label of rlbox.

    Refused while any run or complete checkpoint on it has not been fetched: `vast fetch` first.
    """
    chosen = require_rlbox_instances(list(dict.fromkeys(ids)))
    for instance in chosen if not unfetched else ():
        with app.collecting_refusals_if_dry_run("what is on the disk"):
            _require_fetched(app, instance)
    line = _("{number}  {label}  {status}  ${price} an hour")
    lines = [line.format(number=row.id, label=row.label, status=row.status, price=f"{row.price:.3f}") for row in chosen]
    data = {"instances": [instance.id for instance in chosen], "destroyed": not app.dry_run}
    count = len(chosen)
    if app.dry_run:
        would = ngettext("destroy {count} instance", "destroy {count} instances", count).format(count=count)
        return app.print_dry_run(data, "\n".join(map(translate, lines)), would)
    for line in lines:
        app.print_status(line)
    question = ngettext(
        "destroy {count} instance with everything on the disk",
        "destroy {count} instances with everything on the disk",
        count,
    )
    confirm_unless_yes(app, yes, question.format(count=count))
    for instance in chosen:
        destroy_instance(instance.id)
    app.output(data, join("\n", (_("{number}  destroyed").format(number=instance.id) for instance in chosen)))
    return 0


def _require_fetched(app: App, instance: Instance) -> None:
    step = _("rlbox vast fetch {id}, or --unfetched to lose it").format(id=instance.id)
    if instance.status != "running":
        raise MachineError(
            _("instance {id} is {status}: its disk cannot be checked").format(id=instance.id, status=instance.status),
            next_step=_("rlbox vast start {id}, {step}").format(id=instance.id, step=step),
        )
    with SshConnection(require_ssh_address(instance)) as connection:
        listing = list_run_and_complete_checkpoint_files(connection, _load_disk_mount(app, instance))
    if missing := reuse_or_choose_download_directory(instance.id).find_unverified(listing.files):
        shown = ", ".join(file.path for file in missing[:3]) + (" …" if len(missing) > 3 else "")
        raise MachineError(
            _("instance {id} has {count} files ({size}) not at home: {shown}").format(
                id=instance.id, count=len(missing), size=decimal_size_text(total_bytes(missing)), shown=shown
            ),
            next_step=step,
        )


@vast.command("up")
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@target_profile_and_set_options
@_rental_options
@click.option(
    "--upload", "uploads", metavar="PATH[=DEST]", multiple=True, help="Copy to DEST on the data disk; may be repeated."
)
@click.option(
    "--env-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Copy the job's secrets there, as .env.",
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
def rent_instance_run_job_and_fetch_results(
    app: App,
    job: str,
    target: str | None,
    profiles: tuple[str, ...],
    settings: tuple[str, ...],
    uploads: tuple[str, ...],
    env_file: Path | None,
    then: Any,
    force: bool,
    detach: bool,
    number: int | None,
    **given: Any,
) -> int:
    """Rent a machine for JOB, upload your specs and data, run it, and fetch its runs and checkpoints.

    Without an image of the target's own, a plain CUDA image is rented: rlbox is sent there and installs the locked
    packages. The run keeps going when the connection breaks or this command ends; one that was cut off by a stop of the
    instance resumes at its next start, one that failed does not. To continue, repeat the command with --instance ID.

    \b
    Examples:
      rlbox vast up sft --dry-run
    """
    options = RentalOptions(**given)
    name = target or load_job(app.project, job).target
    loaded = load_and_require_vast_target(app, name)
    require_consistent_stack_or_forced_conflict(app, name, force=force)
    local_uploads = _parse_uploads(uploads)
    command = RunCommand(
        command_words=("vast", "up", job), profiles=profiles, settings=parse_set_options_last_wins(settings)
    )
    with app.collecting_refusals_if_dry_run("job"):
        _require_fit(app, job, command, name, force=force)
    with app.collecting_refusals_if_dry_run("secrets"):
        _require_secrets(app, job, env_file)
    if number is None:
        quote = require_image_and_offer_unless_dry_run(app, loaded, options, job, force=force)
        if app.dry_run or quote.offer is None:
            would = _("{rent}, run {job} there, and fetch its runs and checkpoints")
            would = _("{rent}, and run {job} there") if detach else would
            would = would.format(rent=_describe_rent(quote, options), job=job)
            return app.print_dry_run({**quote.as_json(), "job": job}, quote.format(), would)
        number = _confirm_and_rent(app, quote, quote.offer, options)
    elif app.dry_run:
        would = _("run {job} on instance {number}").format(job=job, number=number)
        return app.print_dry_run({"instance": number, "job": job}, "", would)
    words = [word for profile in profiles for word in ("--profile", profile)]
    words += [word for setting in settings for word in ("--set", setting)]
    words += [*(["--target", target] if target else []), *(["--force"] if force else [])]
    rented = JobUpload(
        instance_id=number,
        job=RemoteJob(job=job, disk=loaded.disk.mount, words=tuple(words), then=then),
        uploads=local_uploads,
        env_file=env_file,
        onstart=render_onstart_with_job_agent(app, loaded, uploads_rlbox=True, ignore_stack_conflicts=force).field_text,
        timeout_s=options.timeout,
    )
    return _run_rented_job(app, rented, detach=detach)


def _run_rented_job(app: App, rented: JobUpload, *, detach: bool) -> int:
    """Do all that is to be done on a rented instance, over a connection that is made again when it breaks.

    Whatever cuts this, the instance is named, and the run goes on once it has started.
    """
    number, run = rented.instance_id, ""
    end = _("rlbox vast logs {number} -f; at its end rlbox vast fetch {number}, rlbox vast destroy {number}")
    end = end.format(number=number)
    try:
        instance = _wait_for_instance(app, number, rented.timeout_s)
        while True:
            with SshConnection(require_ssh_address(instance), rented.timeout_s) as connection:
                try:
                    run = run or ensure_job_uploaded_and_run_started(app, connection, rented)
                    if detach:
                        ssh = instance.ssh_command_or_empty
                        app.output({"instance": number, "run": run, "ssh": ssh}, f"{number}  {run}")
                        app.print_next(end)
                        return 0
                    return _follow_and_fetch(app, connection, rented, run)
                except SshConnectionFailed as error:
                    app.print_status(_("{what}; connecting again").format(what=error.what))
            time.sleep(_RETRY_PAUSE_S)
            instance = _wait_again(app, number, rented.timeout_s)
    except (Exception, KeyboardInterrupt) as error:
        app.print_status(
            _("instance {number} is running and billed; to continue, repeat with --instance {number}").format(
                number=number
            )
        )
        if isinstance(error, KeyboardInterrupt):
            what = _("left: run {run} goes on").format(run=run) if run else _("left")
            raise Interrupted(what, next_step=end if run else f"rlbox vast destroy {number}") from None
        raise


def _follow_and_fetch(app: App, connection: SshConnection, rented: JobUpload, run: str) -> int:
    number, job = rented.instance_id, rented.job
    # after a stop of the instance it takes a while
    wait_for_onstart_and_print_changes(app, connection, job.disk, number, rented.timeout_s)
    app.print_status(
        _("run {run} goes on when this command ends; its logs: rlbox vast logs {number} -f").format(
            run=run, number=number
        )
    )
    end = start_agent_and_await_run_end(app, connection, job, run)
    with keep_agent_from_stopping_instance(connection, job):
        home = reuse_or_choose_download_directory(number)
        fetched, summary = _fetch_files(
            app, connection, job.disk, home, list_run_and_complete_checkpoint_files(connection, job.disk)
        )
    state, cause = str(end.get("state", "")), str(end.get("cause", ""))
    if cause:
        app.print_status(_("cause: {cause}").format(cause=cause))
    data = {"instance": number, "run": run, "state": state, "cause": cause, **fetched}
    text = _("{number}  {run}  {state}: {path}  {summary}, proven")
    app.output(data, text.format(number=number, run=run, state=_(state), path=home.path, summary=summary))
    app.print_next(f"rlbox report --data {home.path}; rlbox vast destroy {number}")
    return int(end.get("exit_code") or 0) or (1 if fetched["troubles"] else 0)


def _wait_again(app: App, number: int, timeout: float) -> Instance:
    """Wait until an instance runs again that could not be reached; this machine may have no network meanwhile."""
    end = time.monotonic() + timeout
    while True:
        try:
            (instance,) = require_rlbox_instances([number])
            if instance.intended_status == "stopped":
                step = f"rlbox vast start {number}, rlbox vast fetch {number}"
                raise WorkFailed(_("instance {number} was stopped").format(number=number), next_step=step)
            return _wait_for_instance(app, number, timeout, is_restart=True)
        except MachineError as error:
            if time.monotonic() >= end:
                raise
            app.print_status(_("{what}; trying again").format(what=error.what))
            time.sleep(_RETRY_PAUSE_S)


def _parse_uploads(texts: Sequence[str]) -> list[tuple[Path, str]]:
    uploads = []
    for text in texts:
        source, __, goal = text.partition("=")
        path = Path(source)
        if not path.exists():
            raise SpecError(
                _("--upload {text}: there is no {source}").format(text=text, source=source),
                next_step=_("name a file or a folder of this machine"),
            )
        uploads.append((path, strip_disk_prefix_or_raise(goal or path.resolve().name, "/")))
    return uploads


def _require_fit(app: App, job_name: str, command: RunCommand, target_name: str, *, force: bool) -> None:
    """Raise `SpecError` when no run can be planned from the job, `MachineError` when it does not fit its target."""
    job = load_job(app.project, job_name)
    values = resolve_params(job, command.profiles, command.settings)
    require_matching_source_if_set(app, job, values, is_local_run=False, accept_other_version=False)
    secrets = tuple(map(str, job.secrets))
    plan_container_run(job, values, "/data", f"{job_name}-PLAN", "here", target_name, secrets)
    fit = check_fit(job, values, load_declared_capacity(app, target_name, ""))
    require_fit(app, job, fit, command, warn_only=force)


def _require_secrets(app: App, job_name: str, env_file: Path | None) -> None:
    """Raise `SpecError`, before anything costs money, when the job wants secrets and no file of text has them."""
    if env_file is not None:
        try:
            env_file.read_text("utf-8")
        except ValueError as error:
            raise SpecError(
                _("the file of --env-file cannot be read: {error}").format(error=error),
                where=str(env_file),
                next_step=_("name a file of text that you may read"),
            ) from error
    elif wanted := load_job(app.project, job_name).secrets:
        raise SpecError(
            _("job {job} wants secrets: {names}").format(job=job_name, names=", ".join(map(str, wanted))),
            next_step=_("--env-file FILE with a line NAME=VALUE for each"),
        )
