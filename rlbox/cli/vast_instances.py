"""`rlbox vast`: find, rent, list and delete instances of vast.ai."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.cli.completers import complete_target
from rlbox.cli.confirmation import require_confirmation
from rlbox.cli.options import NonNegativeNumber, dry_run_option, pass_app_with_shared_options
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.image.forms import OnstartScript
    from rlbox.target.target import Target
    from rlbox.vast.offers import Offer, OfferFilter
    from rlbox.vast.request import Instance, Quote


def require_published_if_registry_answers(app: App, image: str) -> None:
    """Raise `RegistryError` when an image is not in its registry; what cannot be told from here is only said.

    A registry that wants a login, or is not reached from here, may answer the platform.
    """
    from rlbox.engine.reference import parse_reference
    from rlbox.engine.registry_client import Registry
    from rlbox.errors import RegistryError
    from rlbox.system.network_settings import find_custom_ca_bundle

    reference = parse_reference(image)
    try:
        with Registry(reference.host, ca_bundle=find_custom_ca_bundle(), pause=lambda seconds: None) as registry:
            found = registry.find_manifest(reference.repository, reference.digest or reference.tag or "latest")
    except RegistryError as error:
        if app.dry_run:
            app.record_as_unchecked(error.what, f"image {image}")
        else:
            app.print_status(f"not checked: image {image}: {error.what}")
        return
    if found is None:
        raise RegistryError(
            _("{host} has no image {image}").format(host=reference.host, image=image),
            where=reference.host,
            next_step=_("rlbox push TARGET --to REGISTRY/NAME:TAG, then --image that"),
        )


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option(
    "--price", type=NonNegativeNumber(), default=0.0, help="Highest price per hour, in dollars [vast.max_price]."
)
@click.option("--disk", type=NonNegativeNumber(), default=0.0, help="GB of disk [disk.need_gib].")
@dry_run_option
@pass_app_with_shared_options
def search(app: App, name: str, price: float, disk: float) -> int:
    """List the offers that fit TARGET, the cheapest first, priced with its disk.

    Exit code 1: no offer fits; the missing resources of the nearest offers are listed.

    \b
    Examples:
      rlbox vast search vast-5090 --dry-run
      rlbox vast search vast-5090 --price 2.2 --dry-run
    """
    from rlbox.cli.onstart import require_vast_target_by_name
    from rlbox.vast.api import require_api_key
    from rlbox.vast.offers import format_offers, make_offer_filter
    from rlbox.vast.request import parse_docker_options

    target = require_vast_target_by_name(app, name)
    needs = make_offer_filter(
        target,
        max_hourly_usd_override=price,
        disk_gb_override=disk,
        extra_port_count=parse_docker_options(target).port_count,
    )
    if app.dry_run:
        with app.collecting_refusals_if_dry_run("API key"):
            require_api_key()
        data = {"target": name, "query": needs.query(), "request": needs.body(), "offers": []}
        return app.planned(data, needs.query(), "ask vast.ai for its offers")
    fitting = _search_fitting_offers(needs)
    rows = [offer.as_json() for offer in fitting]
    app.result({"target": name, "query": needs.query(), "offers": rows}, format_offers(fitting))
    app.print_status(f"next: rlbox vast create {name} --offer {fitting[0].id} --image IMAGE")
    return 0


def _search_fitting_offers(needs: OfferFilter) -> tuple[Offer, ...]:
    """Ask the platform, and return the offers that fit; `WorkFailed` names what the others lack."""
    from rlbox.errors import WorkFailed
    from rlbox.vast.api import search_offers
    from rlbox.vast.offers import parse_offer, rank_offers

    rows = search_offers(needs)
    fitting, mismatches = rank_offers((parse_offer(row, needs.disk_gb, needs.bid_hourly_usd) for row in rows), needs)
    if not fitting:
        shown = [f"  offer {number}: {text}" for number, text in list(mismatches.items())[:5]]
        raise WorkFailed(
            "\n".join([f"no offer fits, of {len(rows)} that vast.ai has for: {needs.query()}", *shown]),
            next_step=_("raise --price, or try again later: offers change by the minute"),
        )
    return fitting


def _find_cheapest_offer(needs: OfferFilter, offer_id: int | None) -> Offer:
    """Ask the platform, and return the cheapest offer that fits, or the one with `offer_id` if it fits."""
    from rlbox.errors import WorkFailed

    fitting = _search_fitting_offers(needs)
    for offer in fitting:
        if offer_id in (None, offer.id):
            return offer
    raise WorkFailed(
        _("offer {number} is taken, or does not fit the target and its price limit").format(number=offer_id),
        next_step=_("take another: {fitting}").format(fitting=", ".join(str(offer.id) for offer in fitting[:8])),
    )


@dataclass(frozen=True, kw_only=True)
class RentalOptions:
    """On which terms an instance is rented, as the command line says them; `timeout` in seconds, prices in dollars."""

    offer: int | None
    image: str
    price: float
    bid: float
    disk: float
    timeout: float
    yes: bool


_NUMBER = NonNegativeNumber()
_RENT_OPTIONS = (
    click.option("--offer", metavar="ID", type=int, help="Take exactly this offer [the cheapest]."),
    click.option("--image", metavar="IMAGE", default="", help="Image that the platform pulls [vast.image]."),
    click.option("--price", type=_NUMBER, default=0.0, help="Highest price per hour, in dollars [vast.max_price]."),
    click.option("--bid", type=_NUMBER, default=0.0, help="Bid per hour, in dollars, for an interruptible instance."),
    click.option(
        "--disk", type=_NUMBER, default=0.0, help="GB of disk, which cannot be changed later [disk.need_gib]."
    ),
    click.option(
        "--timeout",
        type=_NUMBER,
        default=1800.0,
        metavar="SECONDS",
        show_default=True,
        help="How long to wait until it runs; 0: do not wait.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask."),
)


def rental_options_as_terms(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says on which terms an instance is rented, handed on as `terms`."""

    @functools.wraps(function)
    def with_terms(*args: Any, **given: Any) -> Any:
        terms = RentalOptions(**{name: given.pop(name) for name in RentalOptions.__dataclass_fields__})
        return function(*args, terms=terms, **given)

    for option in reversed(_RENT_OPTIONS):
        with_terms = option(with_terms)
    return with_terms


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@rental_options_as_terms
@dry_run_option
@pass_app_with_shared_options
def create(app: App, name: str, terms: RentalOptions) -> int:
    """Create an instance for TARGET with its on-start script, after printing the price.

    Nothing is rented without a price limit. With --dry-run nothing is rented. Without an API key, the dry run
    uses the price limit as the price, and a real run would fail.

    \b
    Examples:
      rlbox vast create vast-5090 --image registry.example/me/vast-5090:1 --dry-run
    """
    from rlbox.cli.onstart import require_vast_target_by_name

    require_vast_target_by_name(app, name)
    deal = plan_rental(app, name, terms)
    if app.dry_run or deal.offer is None:
        return app.planned(deal.as_json(), "\n".join(deal.lines()), describe_rent_action(deal, terms))
    created = confirm_and_rent(app, deal, deal.offer, terms)
    ssh = wait_for_instance(app, created, terms.timeout).ssh_command if terms.timeout else ""
    app.result({**deal.as_json(), "created": True, "instance": created, "ssh": ssh}, f"{created}  {ssh}".rstrip())
    app.print_status(f"next: {ssh or 'rlbox vast ls'}")
    return 0


def plan_rental(
    app: App, target_name: str, terms: RentalOptions, job: str = "", *, ignore_stack_conflicts: bool = False
) -> Quote:
    """Return what would be rented for a target, from whom; a dry run keeps why there is no offer.

    For a `job` and without an image of the target's own it is a plain CUDA image, to which rlbox is sent.
    """
    from rlbox.vast.offers import make_offer_filter
    from rlbox.vast.request import Quote, choose_plain_image, make_create_request, parse_docker_options

    target, onstart = render_instance_onstart(
        app, target_name, uploads_rlbox=bool(job), ignore_stack_conflicts=ignore_stack_conflicts
    )
    image, setup = terms.image or target.vast.image, ""
    if job and not image and not target.base.holds:  # what a base image holds, no index has
        image, setup = choose_plain_image(target.hardware.cuda_driver), _setup_line(app, target_name)
    options = parse_docker_options(target, image)
    needs = make_offer_filter(
        target,
        max_hourly_usd_override=terms.price,
        disk_gb_override=terms.disk,
        extra_port_count=options.port_count,
        bid_hourly_usd=terms.bid,
    )
    request = make_create_request(target, needs, options, onstart, image=image, job=job)
    with app.collecting_refusals_if_dry_run("image"):
        require_published_if_registry_answers(app, request.image)
    offer = None
    with app.collecting_refusals_if_dry_run("offers"):
        offer = _find_cheapest_offer(needs, terms.offer)
    return Quote(request=request, needs=needs, offer=offer, setup_summary=setup)


def render_instance_onstart(
    app: App, target_name: str, *, uploads_rlbox: bool, ignore_stack_conflicts: bool = False
) -> tuple[Target, OnstartScript]:
    """Return a target and the on-start script of its instances; `uploads_rlbox`: rlbox is sent there.

    Every start of the instance takes up again what `vast up` began there.
    """
    from rlbox.cli.onstart import render_target_onstart
    from rlbox.target.target import load_target
    from rlbox.vast.remote_job import JOB_DIRECTORY, format_job_agent_start_shell

    disk = load_target(app.project, target_name).target.disk.mount
    return render_target_onstart(
        app,
        target_name,
        format_job_agent_start_shell(disk),
        f"{disk}/{JOB_DIRECTORY}" if uploads_rlbox else "",
        ignore_stack_conflicts=ignore_stack_conflicts,
    )


def _setup_line(app: App, name: str) -> str:
    """Return what is done on an instance with a plain image; the lock must be there, and fresh."""
    from rlbox.amounts import counted, decimal_size_text
    from rlbox.image.plan import load_image_plan
    from rlbox.target.lock import load_lock

    with app.collecting_refusals_if_dry_run("lock"):
        load_image_plan(app.project, name).require_current_lock()
    lock = load_lock(app.project.own_or_shipped_lock_file(name))
    files = [package for group in lock.groups for package in group.packages] if lock else []
    size = decimal_size_text(sum(package.size for package in files))
    return f"rlbox is sent over ssh; it installs {counted(len(files), 'package', 'packages')} of the lock, {size}"


def describe_rent_action(deal: Quote, terms: RentalOptions) -> str:
    """Return what a real run would do, for the verdict of a dry run."""
    return (
        f"rent offer {deal.offer.id}, {'without asking' if terms.yes else 'once you said yes'}"
        if deal.offer
        else "rent"
    )


def confirm_and_rent(app: App, deal: Quote, offer: Offer, terms: RentalOptions) -> int:
    """Print what it costs, ask, rent, and return the id of the instance."""
    from rlbox.vast.api import create_instance

    for line in deal.cost_lines():
        app.print_status(line)
    require_confirmation(app, terms.yes, f"rent offer {offer.id} for target {deal.request.target}")
    created = create_instance(offer.id, deal.request)
    app.print_status(f"instance {created} is created and billed until: rlbox vast destroy {created}")
    return created


def wait_for_instance(app: App, instance_id: int, timeout_s: float, *, is_restart: bool = False) -> Instance:
    """Wait until an instance runs; Ctrl-C leaves it."""
    from rlbox.errors import Interrupted
    from rlbox.vast.api import wait_until_running

    try:
        return wait_until_running(instance_id, timeout_s, app.print_status, restarted=is_restart)
    except KeyboardInterrupt:
        unseen = "" if is_restart else " --unfetched"  # nothing is on its disk yet
        step = f"rlbox vast destroy {instance_id}{unseen}"
        raise Interrupted(
            _("instance {number} is still running and billed").format(number=instance_id), next_step=step
        ) from None


_ANY = {"ignore_unknown_options": True}


@click.command("ls")
@pass_app_with_shared_options
def list_them(app: App) -> None:
    """List the instances that rlbox created, with their prices; instances of other users are not shown.

    \b
    Example:
      rlbox vast ls --help
    """
    from rlbox.amounts import columns
    from rlbox.vast.api import list_instances

    own = [one for one in list_instances().values() if one.is_rlbox_made]
    rows = [(str(one.id), one.label, one.status or "created", f"{one.price:.3f}", one.ssh_command) for one in own]
    data = [
        {"id": one.id, "label": one.label, "status": one.status, "price": one.price, "ssh": one.ssh_command}
        for one in own
    ]
    text = "\n".join(columns([("id", "label", "state", "$/h", "reached by"), *rows])) if rows else "no instance"
    app.result({"instances": data}, text)


@click.command(context_settings=_ANY)
@click.argument("number", metavar="ID", type=int)
@click.argument("words", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@pass_app_with_shared_options
def ssh(app: App, number: int, words: tuple[str, ...]) -> int:
    """Open a shell on instance ID, or run one command there and return its exit code.

    \b
    Example:
      rlbox vast ssh --help
    """
    from rlbox.ssh.connection import run_terminal
    from rlbox.vast.api import find_rlbox_instance
    from rlbox.vast.instance import ssh_address

    return run_terminal(ssh_address(find_rlbox_instance(number)), words[0] if len(words) == 1 else shlex.join(words))


@click.command()
@click.argument("number", metavar="ID", type=int)
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends.")
@pass_app_with_shared_options
def logs(app: App, number: int, follow: bool) -> int:
    """Print the logs of the latest run on instance ID.

    \b
    Example:
      rlbox vast logs --help
    """
    from rlbox.ssh.connection import run_terminal
    from rlbox.vast.api import find_rlbox_instance
    from rlbox.vast.instance import ssh_address
    from rlbox.vast.remote_job import format_rlbox_tool_assignment_shell

    one = find_rlbox_instance(number)
    disk = load_instance_target_data_mount(app, one)
    command = f"{format_rlbox_tool_assignment_shell(disk)}; exec $tool/bin/rlbox logs --data {shlex.quote(disk)}" + (
        " -f" if follow else ""
    )
    return run_terminal(ssh_address(one), command)


@click.command()
@click.argument("number", metavar="ID", type=int)
@dry_run_option
@pass_app_with_shared_options
def stop(app: App, number: int) -> int:
    """Stop instance ID: only its disk, which is kept, is billed. A run in progress is cut off; `start` resumes it.

    \b
    Example:
      rlbox vast stop --help
    """
    from rlbox.vast.api import find_rlbox_instance, set_instance_state

    one = find_rlbox_instance(number)
    if app.dry_run:
        return app.planned({"instance": number}, f"{one.id}  {one.label}  {one.status}", f"stop instance {number}")
    set_instance_state(number, "stopped")
    app.result({"instance": number, "state": "stopped"}, f"{number}  stops")
    app.print_status(f"next: rlbox vast start {number}, or rlbox vast destroy {number}: its disk is billed until then")
    return 0


@click.command()
@click.argument("number", metavar="ID", type=int)
@click.option(
    "--timeout",
    type=NonNegativeNumber(),
    default=1800.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait until it is ready.",
)
@dry_run_option
@pass_app_with_shared_options
def start(app: App, number: int, timeout: float) -> int:
    """Start instance ID again, and wait until it is ready; an interrupted job of `vast up` resumes
    automatically.

    \b
    Example:
      rlbox vast start --help
    """
    from rlbox.ssh.connection import SshConnection
    from rlbox.vast.api import find_rlbox_instance, set_instance_state
    from rlbox.vast.instance import ssh_address, wait_for_onstart

    one = find_rlbox_instance(number)
    if app.dry_run:
        return app.planned({"instance": number}, f"{one.id}  {one.label}  {one.status}", f"start instance {number}")
    set_instance_state(number, "running")
    ready = wait_for_instance(app, number, timeout, is_restart=True)
    with SshConnection(ssh_address(ready), timeout) as connection:
        wait_for_onstart(connection, load_instance_target_data_mount(app, one), number, timeout, app.print_status)
    app.result({"instance": number, "state": "running", "ssh": ready.ssh_command}, f"{number}  {ready.ssh_command}")
    app.print_status(f"next: rlbox vast logs {number} -f")
    return 0


def load_instance_target_data_mount(app: App, instance: Instance) -> str:
    """Return where the data disk of an instance is: where its target has it."""
    from rlbox.target.target import load_target

    return load_target(app.project, instance.target).target.disk.mount


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=int)
@click.option("--unfetched", is_flag=True, help="Destroy even if runs or checkpoints have not been fetched.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@pass_app_with_shared_options
def destroy(app: App, ids: tuple[int, ...], unfetched: bool, yes: bool) -> int:
    """Destroy instances with everything on their disks; only those that rlbox created, told by their labels.

    Refused while any run or complete checkpoint on it has not been fetched: `vast fetch` first.

    \b
    Example:
      rlbox vast destroy --help
    """
    from rlbox.vast.api import destroy_instance, list_instances
    from rlbox.vast.request import require_rlbox_instances

    chosen = require_rlbox_instances(list_instances(), tuple(dict.fromkeys(ids)))
    for one in chosen if not unfetched else ():
        with app.collecting_refusals_if_dry_run("what is on the disk"):
            _require_fetched(app, one)
    lines = [f"{one.id}  {one.label}  {one.status or 'created'}  ${one.price:.3f} an hour" for one in chosen]
    data = {"instances": [one.id for one in chosen], "destroyed": not app.dry_run}
    count = counted(len(chosen), "instance", "instances")
    if app.dry_run:
        return app.planned(data, "\n".join(lines), f"destroy {count}")
    for line in lines:
        app.print_status(line)
    require_confirmation(app, yes, f"destroy {count} with everything on the disk")
    for one in chosen:
        destroy_instance(one.id)
    app.result(data, "\n".join(f"{one.id}  destroyed" for one in chosen))
    return 0


def _require_fetched(app: App, one: Instance) -> None:
    """Raise `NodeError` unless all that should come home of an instance is here."""
    from rlbox.amounts import decimal_size_text
    from rlbox.errors import NodeError
    from rlbox.ssh.connection import SshConnection
    from rlbox.ssh.files import total_bytes
    from rlbox.vast.instance import list_result_files, load_recorded_download_directory, ssh_address

    step = _("rlbox vast fetch {id}, or --unfetched to lose it").format(id=one.id)
    if one.status != "running":
        raise NodeError(
            _("instance {id} is {status}: its disk cannot be checked").format(
                id=one.id, status=one.status or _("being made")
            ),
            next_step=_("rlbox vast start {id}, {step}").format(id=one.id, step=step),
        )
    with SshConnection(ssh_address(one)) as connection:
        files, __ = list_result_files(connection, load_instance_target_data_mount(app, one))
    if lacking := load_recorded_download_directory(one.id).find_missing(files):
        shown = ", ".join(file.path for file in lacking[:3]) + (" …" if len(lacking) > 3 else "")
        raise NodeError(
            _("instance {id} has {count} files ({size}) not at home: {shown}").format(
                id=one.id, count=len(lacking), size=decimal_size_text(total_bytes(lacking)), shown=shown
            ),
            next_step=step,
        )
