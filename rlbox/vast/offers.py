"""Which offers of vast.ai fit a target, what they cost, and the query that finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import align_translated, decimal_size_text
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _, join
from rlbox.target.target import Target

_REPORTED_MEMORY = 0.97
"""Part of its nominal memory that a card reports at least: one of 32 GB tells 31.8."""
_HOURS_A_MONTH = 30 * 24
_MAX_OFFERS = 64
_MAX_NAMED = 5
_SIGNS = {"=": "eq", ">=": "gte", "<=": "lte"}


@dataclass(frozen=True, kw_only=True)
class OfferFilter:
    """What an offer must have: `conditions` are fields of the platform, `=`, `>=` or `<=`, and a value.

    Memory is in GB of 10^9, as the platform's own client writes it; `max_hourly_usd` includes the disk, 0 is no limit.
    """

    conditions: tuple[tuple[str, str, Any], ...]
    disk_gb: float
    ram_gb: float
    max_hourly_usd: float

    def to_search_body(self) -> dict[str, Any]:
        """Return the body of the platform's search, which counts memory in MB and prices the disk."""
        filters = {
            name: {_SIGNS[sign]: value * 1000.0 if name in ("gpu_ram", "cpu_ram") else value}
            for name, sign, value in self.conditions
        }
        return {
            "verified": {"eq": True},
            "external": {"eq": False},
            "rentable": {"eq": True},
            **filters,
            "type": "on-demand",
            "order": [["dph_total", "asc"]],
            "limit": _MAX_OFFERS,
            "allocated_storage": self.disk_gb,
        }

    def to_query(self) -> str:
        values = ((name + sign, f"{value:g}" if isinstance(value, float) else value)
                  for name, sign, value in self.conditions)  # fmt: skip
        return " ".join(f"{name}{value}".replace(" ", "_") for name, value in values)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One offer. Memory and disk in GB, prices in dollars; `ram` and `cores` are the rented share of the machine.

    `storage` is the price of an hour of the disk, which is billed while the instance is stopped, too.
    """

    id: int
    gpu_name: str
    gpus: int
    cuda: float
    disk: float
    cores: float
    ram: float
    reliability: float
    price: float
    storage: float
    traffic: float
    down_mbps: float
    place: str

    def as_json(self) -> dict[str, Any]:
        return {name: round(part, 4) if isinstance(part, float) else part for name, part in asdict(self).items()}


def make_offer_filter(target: Target, docker_options: Mapping[str, str], hourly_usd_limit: float = 0.0) -> OfferFilter:
    """Return what a target needs of an offer; an `hourly_usd_limit` above 0 overrides its own limit.

    `docker_options` is the platform's object, which names ports. Fields: `offers_fields` of vastai 1.9.1; `gpu_ram`
    is that of one card, and `reliability2` is no field of a search any more (vast-ai/base-image commits 1b67a9b,
    f0df910, 0cf5daf).
    """
    hardware = target.hardware
    name = target.vast.gpu_name or convert_to_vast_gpu_name(hardware.gpu)
    if not name or not hardware.gpus:
        raise SpecError(
            _("target {target} names no GPU to search for").format(target=target.name),
            where=f"images/{target.name}/target.toml: hardware",
            next_step=_("set hardware.gpus, and hardware.gpu or vast.gpu_name"),
        )
    max_hourly_usd = hourly_usd_limit or target.vast.max_price
    conditions = (
        ("num_gpus", "=", hardware.gpus),
        ("gpu_name", "=", name),
        ("gpu_ram", ">=", int(hardware.gpu_memory_gib * _REPORTED_MEMORY)),
        ("cuda_max_good", ">=", hardware.cuda_driver),
        ("disk_space", ">=", target.disk.need_gib),
        ("cpu_cores_effective", ">=", hardware.cores),
        ("cpu_ram", ">=", hardware.memory_gib),
        ("reliability", ">=", target.vast.min_reliability),
        ("direct_port_count", ">=", 1 + sum(key.startswith("-p ") for key in docker_options)),  # ssh
        ("dph_total", "<=", max_hourly_usd),
    )
    return OfferFilter(
        conditions=tuple(condition for condition in conditions if condition[2]),
        disk_gb=target.disk.need_gib,
        ram_gb=hardware.memory_gib,
        max_hourly_usd=max_hourly_usd,
    )


def convert_to_vast_gpu_name(driver_gpu_name: str) -> str:
    """Return what the platform calls a GPU that the driver calls `driver_gpu_name`: RTX 5090, A100 SXM4."""
    words = re.sub(r"^NVIDIA |GeForce |-?\b\d+GB\b", "", driver_gpu_name).replace("-", " ")
    return " ".join(words.split())


def parse_offer(row: Mapping[str, Any], disk_gb: float) -> Offer:
    """Return an offer of the platform's answer, priced with a disk of `disk_gb` GB; what it does not say counts as 0.

    An instance gets its share of the machine's memory, and what it takes beyond may be killed at any moment.
    """

    def number(field: str) -> float:
        return float(row.get(field) or 0.0)

    storage = number("storage_cost") * disk_gb / _HOURS_A_MONTH
    price = number("dph_total")
    if row.get("storage_total_cost") is not None:
        price += storage - number("storage_total_cost")
    return Offer(
        id=int(row["id"]),
        gpu_name=str(row.get("gpu_name") or ""),
        gpus=int(number("num_gpus")),
        cuda=number("cuda_max_good"),
        disk=number("disk_space"),
        cores=number("cpu_cores_effective"),
        ram=number("cpu_ram") / 1000 * (number("gpu_frac") or 1.0),
        reliability=number("reliability2") or number("reliability"),
        price=price,
        storage=storage,
        traffic=max(number("inet_down_cost"), number("inet_up_cost")),
        down_mbps=number("inet_down"),
        place=str(row.get("geolocation") or ""),
    )


def format_gb_as_decimal_size(size_gb: float) -> str:
    return decimal_size_text(size_gb * 1e9)


def require_fitting_offers(raw_offers: Sequence[Mapping[str, Any]], needs: OfferFilter) -> list[Offer]:
    """Return the offers that fit, the cheapest first, among those that the platform's filter let through.

    That knows neither shares of memory nor the price with this disk. `WorkFailed` where none fits.
    """
    fitting, mismatches = [], []
    for offer in (parse_offer(row, needs.disk_gb) for row in raw_offers):
        if offer.ram < needs.ram_gb:
            share, need = format_gb_as_decimal_size(offer.ram), format_gb_as_decimal_size(needs.ram_gb)
            text = _("  offer {offer}: {share} of memory in its share, {need} needed")
            mismatches.append(text.format(offer=offer.id, share=share, need=need))
        elif 0 < needs.max_hourly_usd < offer.price:
            text = _("  offer {offer}: ${price} an hour, at most ${limit}")
            mismatches.append(
                text.format(offer=offer.id, price=f"{offer.price:.3f}", limit=f"{needs.max_hourly_usd:g}")
            )
        else:
            fitting.append(offer)
    if not fitting:
        text = _("no offer fits, of {count} that vast.ai has for: {query}")
        head = text.format(count=len(raw_offers), query=needs.to_query())
        step = _("raise --price, or try again later: offers change by the minute")
        raise WorkFailed(join("\n", [head, *mismatches[:_MAX_NAMED]]), next_step=step)
    return sorted(fitting, key=lambda offer: offer.price)


def format_offer_table(offers: Sequence[Offer]) -> str:
    head = (_("offer"), _("$/h"), "GPUs", _("cores"), "GB", _("disk GB"), "CUDA", _("reliable"), "Mbit/s", _("where"))
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
    return "\n".join(align_translated([head, *rows]))
