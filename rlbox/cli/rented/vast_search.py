"""`rlbox vast search`: the offers that fit a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import Amount, dry_run, shared

if TYPE_CHECKING:
    from rlbox.vast.offers import Needs, Offer


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--price", type=Amount(), default=0.0, help="Highest price per hour, in dollars [vast.max_price].")
@click.option("--disk", type=Amount(), default=0.0, help="GB of disk [disk.need_gib].")
@dry_run
@shared
def search(app: App, name: str, price: float, disk: float) -> int:
    """List the offers that fit TARGET, the cheapest first, priced with its disk.

    Exit code 1: no offer fits; what the nearest ones lack is listed.

    \b
    Examples:
      rlbox vast search vast-5090 --dry-run
      rlbox vast search vast-5090 --price 2.2 --dry-run
    """
    from rlbox.cli.rented.onstart import require_rented
    from rlbox.target.load import cuda12_variant
    from rlbox.vast.account import SEARCH_PATH, platform_url, require_key
    from rlbox.vast.offers import offer_needs
    from rlbox.vast.options import parse_options
    from rlbox.vast.view import offer_row, offer_table, search_line

    target = require_rented(app, name)
    needs = offer_needs(target, price=price, disk=disk, ports=len(parse_options(target).ports))
    if app.dry_run:
        with app.checking("API key"):
            require_key()
        told = {"target": name, "query": needs.query(), "request": needs.body(), "offers": []}
        asked = search_line(f"{platform_url()}{SEARCH_PATH}", needs)
        return app.planned(told, f"# offers with {needs.query()}\n{asked}", "ask vast.ai for its offers")
    fitting = fitting_offers(needs, cuda12_variant(app.project, name))
    rows = [offer_row(offer) for offer in fitting]
    app.result({"target": name, "query": needs.query(), "offers": rows}, offer_table(fitting))
    app.say(f"next: rlbox vast create {name} --offer {fitting[0].id} --image IMAGE")
    return 0


def fitting_offers(needs: Needs, variant: str = "") -> tuple[Offer, ...]:
    """Ask the platform, and return the offers that fit; `WorkFailed` names what the others lack.

    `variant` is the target of the same stack for older drivers, where there is one.
    """
    from rlbox.errors import WorkFailed
    from rlbox.vast.account import search_offers
    from rlbox.vast.offers import rank, read_offer

    rows = search_offers(needs)
    fitting, lacks = rank((read_offer(row, needs.disk, needs.bid) for row in rows), needs)
    if fitting:
        return fitting
    shown = [f"  offer {number}: {'; '.join(missing)}" for number, missing in list(lacks.items())[:5]]
    older = f"; machines with an older driver: rlbox vast search {variant}" if variant else ""
    raise WorkFailed(
        "\n".join([f"no offer fits, of {len(rows)} that vast.ai has for: {needs.query()}", *shown]),
        next_step=f"raise --price, or try again later: offers change by the minute{older}",
    )


def choose_offer(needs: Needs, number: int | None) -> Offer:
    """Ask the platform, and return the cheapest offer that fits, or the one with `number` if it fits."""
    from rlbox.errors import WorkFailed

    fitting = fitting_offers(needs)
    if number is None:
        return fitting[0]
    for offer in fitting:
        if offer.id == number:
            return offer
    raise WorkFailed(
        f"offer {number} is taken, or does not fit the target and its price limit",
        next_step=f"take another: {', '.join(str(offer.id) for offer in fitting[:8])}",
    )
