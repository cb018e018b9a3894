"""`rlbox vast create`: rent a machine of vast.ai for a target, at a price that is said before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import Amount, dry_run, shared

if TYPE_CHECKING:
    from rlbox.vast.request import Instance


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--offer", "number", metavar="ID", type=int, help="Take this offer and no other; default: the cheapest.")
@click.option("--image", metavar="IMAGE", default="", help="Image that the platform pulls [vast.image].")
@click.option("--price", type=Amount(), default=0.0, help="Most dollars an hour [vast.max_price].")
@click.option("--disk", type=Amount(), default=0.0, help="GB of disk, fixed for good [disk.need_gib].")
@click.option("--options", metavar="TEXT", help="Docker options: -e, -p, -h and no other [vast.options].")
@click.option("--add", "added", metavar="FILE", help="Shell text of yours that every start carries out last.")
@click.option("--hours", type=Amount(), default=6.0, show_default=True, help="To say what it costs for.")
@click.option(
    "--timeout",
    type=Amount(),
    default=1800.0,
    metavar="SECONDS",
    show_default=True,
    help="Until it runs; 0: do not wait.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def create(
    app: App,
    name: str,
    number: int | None,
    image: str,
    price: float,
    disk: float,
    options: str | None,
    added: str | None,
    hours: float,
    timeout: float,
    yes: bool,
) -> int:
    """Create an instance for TARGET with its on-start script, after saying what it costs.

    There is no renting without a ceiling of the price. With --dry-run nothing is rented; without an API key the ceiling
    stands for the price, and renting would be refused.

    \b
    Examples:
      rlbox vast create vast-5090 --image registry.example/me/vast-5090:1 --dry-run
    """
    from rlbox.cli.machines.onstart import make_onstart
    from rlbox.cli.machines.vast_search import choose_offer
    from rlbox.vast.act.account import create_instance
    from rlbox.vast.offers import offer_needs
    from rlbox.vast.options import parse_options
    from rlbox.vast.request import plan_request
    from rlbox.vast.view import Deal

    target, onstart = make_onstart(app, name, added)
    given = parse_options(target, options, image)
    needs = offer_needs(target, price=price, disk=disk, ports=len(given.ports))
    request = plan_request(target, needs, given, onstart, image=image)
    offer = None
    with app.checking("offers"):
        offer = choose_offer(needs, number)
    deal = Deal(request=request, needs=needs, offer=offer, hours=hours)
    if app.dry_run or offer is None:
        would = f"rent offer {offer.id}, {'without asking' if yes else 'once you said yes'}" if offer else "rent"
        return app.planned(deal.as_json(), "\n".join(deal.lines()), would)
    for line in deal.cost_lines():
        app.say(line)
    confirm(app, yes, f"rent offer {offer.id} for target {name}")
    created = create_instance(offer.id, request)
    app.say(f"instance {created} is made, and paid for until: rlbox vast destroy {created}")
    ssh = _wait(app, created, timeout).ssh if timeout else ""
    app.result({**deal.as_json(), "created": True, "instance": created, "ssh": ssh}, f"{created}  {ssh}".rstrip())
    app.say(f"next: {ssh or 'vastai show instances'}")
    return 0


def confirm(app: App, yes: bool, what: str) -> None:
    """Ask a person whether to go on; without a terminal only `--yes` will do."""
    import sys

    if yes:
        return
    if app.as_json or not sys.stdin.isatty():
        raise click.UsageError(f"nobody can be asked here: --yes to {what}")
    click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)


def _wait(app: App, created: int, timeout: float) -> Instance:
    from rlbox.errors import Interrupted
    from rlbox.vast.act.account import wait_running

    try:
        return wait_running(created, timeout, app.say)
    except KeyboardInterrupt:
        raise Interrupted(
            f"instance {created} is left, and costs money", next_step=f"rlbox vast destroy {created}"
        ) from None
