"""`rlbox vast create`: rent a machine of vast.ai for a target, at a price that is said before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.asked import confirm
from rlbox.cli.offered import complete_target
from rlbox.cli.options import Amount, dry_run, shared

if TYPE_CHECKING:
    from rlbox.image.forms.onstart import OnStart
    from rlbox.target.target import Target
    from rlbox.vast.offers import Offer
    from rlbox.vast.request import Instance
    from rlbox.vast.view import Deal


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On which terms an instance is rented, as the command line says them; `timeout` in seconds, prices in dollars."""

    offer: int | None
    image: str
    price: float
    bid: float
    disk: float
    options: str | None
    hours: float
    timeout: float
    yes: bool


def rent_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says on which terms an instance is rented, handed on as `terms`."""

    @functools.wraps(function)
    def with_terms(*args: Any, **given: Any) -> Any:
        terms = Terms(**{name: given.pop(name) for name in Terms.__dataclass_fields__})
        return function(*args, terms=terms, **given)

    for option in reversed(
        (
            click.option("--offer", metavar="ID", type=int, help="Take exactly this offer [the cheapest]."),
            click.option("--image", metavar="IMAGE", default="", help="Image that the platform pulls [vast.image]."),
            click.option(
                "--price", type=Amount(), default=0.0, help="Highest price per hour, in dollars [vast.max_price]."
            ),
            click.option(
                "--bid", type=Amount(), default=0.0, help="Bid per hour, in dollars, for an interruptible instance."
            ),
            click.option(
                "--disk", type=Amount(), default=0.0, help="GB of disk, which cannot be changed later [disk.need_gib]."
            ),
            click.option("--options", metavar="TEXT", help="Docker options, of -e, -p and -h only [vast.options]."),
            click.option(
                "--hours", type=Amount(), default=6.0, show_default=True, help="Hours to estimate the cost for."
            ),
            click.option(
                "--timeout",
                type=Amount(),
                default=1800.0,
                metavar="SECONDS",
                show_default=True,
                help="How long to wait until it runs; 0: do not wait.",
            ),
            click.option("--yes", is_flag=True, help="Do not ask."),
        )
    ):
        with_terms = option(with_terms)
    return with_terms


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@rent_options
@click.option("--add", "added", metavar="FILE", help="Shell commands of yours, run last at every start.")
@dry_run
@shared
def create(app: App, name: str, terms: Terms, added: str | None) -> int:
    """Create an instance for TARGET with its on-start script, after stating what it costs.

    Nothing is rented without a price limit. With --dry-run nothing is rented; without an API key the price limit stands
    in for the price, and renting would be refused.

    \b
    Examples:
      rlbox vast create vast-5090 --image registry.example/me/vast-5090:1 --dry-run
    """
    from rlbox.cli.rented.onstart import read_added, require_rented

    require_rented(app, name)
    deal = plan_deal(app, name, terms, read_added(added))
    if app.dry_run or deal.offer is None:
        return app.planned(deal.as_json(), "\n".join(deal.lines()), would_rent(deal, terms))
    created = rent(app, deal, deal.offer, terms)
    ssh = wait_for(app, created, terms.timeout).ssh if terms.timeout else ""
    app.result({**deal.as_json(), "created": True, "instance": created, "ssh": ssh}, f"{created}  {ssh}".rstrip())
    app.say(f"next: {ssh or 'rlbox vast ls'}")
    return 0


def plan_deal(app: App, name: str, terms: Terms, added: str = "", job: str = "", *, force: bool = False) -> Deal:
    """Return what would be rented for a target, from whom; a dry run keeps why there is no offer.

    Every start of the instance carries out `added`, and then takes up again what `vast up` began there. For a `job` and
    without an image of the target's own it is a plain CUDA image, to which rlbox is sent.
    """
    from rlbox.cli.rented.published import require_published
    from rlbox.cli.rented.vast_search import choose_offer
    from rlbox.vast.offers import offer_needs
    from rlbox.vast.options import parse_options
    from rlbox.vast.request import plain_image, plan_request
    from rlbox.vast.view import Deal

    target, onstart = rented_onstart(app, name, added, sent=bool(job), force=force)
    image, setup = terms.image or target.vast.image, ""
    if job and not image and not target.base.holds:  # what a base image holds, no index has
        image, setup = plain_image(target.hardware.cuda_driver), _setup_line(app, name)
    given = parse_options(target, terms.options, image)
    needs = offer_needs(target, price=terms.price, disk=terms.disk, ports=len(given.ports), bid=terms.bid)
    request = plan_request(target, needs, given, onstart, image=image, job=job)
    with app.checking("image"):
        require_published(app, request.image)
    offer = None
    with app.checking("offers"):
        offer = choose_offer(needs, terms.offer)
    return Deal(request=request, needs=needs, offer=offer, hours=terms.hours, setup=setup)


def rented_onstart(app: App, name: str, added: str = "", *, sent: bool, force: bool = False) -> tuple[Target, OnStart]:
    """Return a target and the on-start script of its instances, to which rlbox may be `sent`."""
    from rlbox.cli.rented.onstart import make_onstart
    from rlbox.target.load import load_target
    from rlbox.vast.stay import FOLDER, keep_text

    disk = load_target(app.project, name).target.disk.mount
    text = f"{added.rstrip()}\n{keep_text(disk)}".lstrip()
    return make_onstart(app, name, text, f"{disk}/{FOLDER}" if sent else "", force=force)


def _setup_line(app: App, name: str) -> str:
    """Return what is done on an instance with a plain image; the lock must be there, and fresh."""
    from rlbox.amounts import counted, size_text
    from rlbox.image.plans import image_plan
    from rlbox.target.lock import load_lock

    with app.checking("lock"):
        image_plan(app.project, name).require_lock()
    lock = load_lock(app.project.lock_file(name))
    files = [package for group in lock.groups for package in group.packages] if lock else []
    size = size_text(sum(package.size for package in files))
    return f"rlbox is sent over ssh; it installs {counted(len(files), 'package', 'packages')} of the lock, {size}"


def would_rent(deal: Deal, terms: Terms) -> str:
    """Return what a real run would do, for the verdict of a dry run."""
    return (
        f"rent offer {deal.offer.id}, {'without asking' if terms.yes else 'once you said yes'}"
        if deal.offer
        else "rent"
    )


def rent(app: App, deal: Deal, offer: Offer, terms: Terms) -> int:
    """Say what it costs, ask, and rent; return the number of the instance."""
    from rlbox.vast.account import create_instance

    for line in deal.cost_lines():
        app.say(line)
    confirm(app, terms.yes, f"rent offer {offer.id} for target {deal.request.target}")
    created = create_instance(offer.id, deal.request)
    app.say(f"instance {created} is created and billed until: rlbox vast destroy {created}")
    return created


def wait_for(app: App, number: int, timeout: float, *, started: bool = False) -> Instance:
    """Wait until an instance runs; Ctrl-C leaves it."""
    from rlbox.errors import Interrupted
    from rlbox.vast.account import wait_running

    try:
        return wait_running(number, timeout, app.say, started=started)
    except KeyboardInterrupt:
        unseen = "" if started else " --unfetched"  # nothing is on its disk yet
        step = f"rlbox vast destroy {number}{unseen}"
        raise Interrupted(f"instance {number} is still running and billed", next_step=step) from None
