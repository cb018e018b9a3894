"""Offers, and what is rented at what price, in words and as JSON types."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import columns
from rlbox.vast.offers import Offer, OfferFilter, format_gb
from rlbox.vast.request import CreateRequest


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What is rented, from whom, and what it is reckoned to cost; no offer: none was asked for.

    `setup` is what is done there before the job, empty for an image of the target's own.
    """

    request: CreateRequest
    needs: OfferFilter
    offer: Offer | None
    hours: float
    setup: str = ""

    def lines(self) -> list[str]:
        return [
            f"image    {self.request.image}",
            *([f"setup    {self.setup}"] if self.setup else []),
            f"disk     {format_gb(self.request.disk)}",
            f"label    {self.request.label}",
            f"mode     {self.request.mode}",
            *(f"env      {f'{name}={value}'}" for name, value in self.request.env.items()),
            f"onstart  {len(self.request.onstart)} characters",
            f"query    {self.needs.query()}",
            *(f"cost     {line}" for line in self.cost_lines()),
        ]

    def cost_lines(self) -> list[str]:
        most, hours, one = self.needs.price, self.hours, self.offer
        if one is None:
            return [f"at most ${most:g} an hour, ${most * hours:.2f} for {hours:g} hours (assumed: the ceiling)"]
        running = f"${one.price * hours:.2f} for {hours:g} hours, ${one.price * 24:.2f} a day"
        return [
            f"offer {one.id}: {one.gpus} x {one.gpu_name}, {one.place or 'somewhere'}",
            f"${one.price:.3f} an hour while it runs: {running}",
            f"${one.storage:.3f} an hour for the disk when it is stopped, until it is destroyed",
            f"${one.traffic * 1000:.2f} at most for a TB of traffic, in either direction",
        ]

    def as_json(self) -> dict[str, Any]:
        row = offer_as_json(self.offer) if self.offer else None
        cost = {"hour": self.needs.price, "assumed": True}
        if row:
            cost = {"hour": row["price"], "stopped_hour": row["storage"], "traffic_gb": row["traffic"]}
        return {
            "target": self.request.target,
            "created": False,
            "request": {**asdict(self.request), "env": dict(self.request.env)},
            "setup": self.setup,
            "query": self.needs.query(),
            "offer": row,
            "cost": {**cost, "hours": self.hours},
        }


def format_search_command(url: str, needs: OfferFilter) -> str:
    """Return a search as a line for a shell that knows the API key."""
    heads = ('-H "Authorization: Bearer $VAST_API_KEY"', "-H 'Content-Type: application/json'")
    return f"curl -sS {url} {' '.join(heads)} -d {shlex.quote(json.dumps(needs.body()))}"


def offer_as_json(offer: Offer) -> dict[str, Any]:
    return {name: round(part, 4) if isinstance(part, float) else part for name, part in asdict(offer).items()}


def format_offers(offers: tuple[Offer, ...]) -> str:
    head = ("offer", "$/h", "GPUs", "cores", "GB", "disk GB", "CUDA", "reliable", "Mbit/s", "where")
    rows = [
        (
            str(offer.id),
            f"{offer.price:.3f}",
            f"{offer.gpus} x {offer.gpu_name}",
            f"{offer.cores:g}",
            f"{offer.ram:.0f}",
            f"{offer.disk:.0f}",
            f"{offer.cuda:g}",
            f"{offer.reliability:.3f}",
            f"{offer.down_mbps:.0f}",
            offer.place,
        )
        for offer in offers
    ]
    return "\n".join(columns([head, *rows]))
