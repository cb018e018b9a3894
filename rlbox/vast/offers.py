"""Which offers of vast.ai fit a target, what they cost, and the query that finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import columns, decimal_size_text
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _
from rlbox.target.target import Target

_REPORTED_MEMORY = 0.97
"""Part of its nominal memory that a card reports at least: one of 32 GB tells 31.8."""
_HOURS_A_MONTH = 30 * 24
_MAX_OFFERS = 64
_MAX_NAMED = 5
_SIGNS = {"=": "eq", ">=": "gte", "<=": "lte"}


@dataclass(frozen=True, kw_only=True)
class OfferFilter:
    """What an offer must have. Memory in GB of 10^9 as the platform's filter counts; 0 and an empty text ask nothing.

    `gpu_ram_gb` is memory of one card; `max_hourly_usd` the most an hour may cost, with the disk; `bid_hourly_usd`,
    unless 0, what is bid for an hour of an instance that may be stopped for who pays more.
    """

    gpu_name: str
    gpus: int
    gpu_ram_gb: int
    min_cuda: str
    disk_gb: float
    cores: int
    ram_gb: float
    min_reliability: float
    direct_ports: int
    max_hourly_usd: float
    bid_hourly_usd: float = 0.0

    def _rows(self) -> list[tuple[str, str, Any]]:
        """Return the fields of the platform with what each must be.

        `gpu_ram` is of one card, `gpu_total_ram` of all; `reliability2` is no field of a search any more.
        Source: `offers_fields` of vastai 1.9.1; vast-ai/base-image commits 1b67a9b, f0df910, 0cf5daf.
        """
        rows = (
            ("num_gpus", "=", self.gpus),
            ("gpu_name", "=", self.gpu_name),
            ("gpu_ram", ">=", self.gpu_ram_gb),
            ("cuda_max_good", ">=", self.min_cuda),
            ("disk_space", ">=", self.disk_gb),
            ("cpu_cores_effective", ">=", self.cores),
            ("cpu_ram", ">=", self.ram_gb),
            ("reliability", ">=", self.min_reliability),
            ("direct_port_count", ">=", self.direct_ports),
            ("min_bid", "<=", self.bid_hourly_usd),
            ("dph_total", "<=", 0.0 if self.bid_hourly_usd else self.max_hourly_usd),
        )
        return [row for row in rows if row[2]]

    def body(self) -> dict[str, Any]:
        """Return the body of the platform's search, which counts memory in MB and prices the disk."""
        filters = {
            name: {_SIGNS[sign]: value * 1000.0 if name in ("gpu_ram", "cpu_ram") else value}
            for name, sign, value in self._rows()
        }
        return {
            "verified": {"eq": True},
            "external": {"eq": False},
            "rentable": {"eq": True},
            **filters,
            "type": "bid" if self.bid_hourly_usd else "on-demand",
            "order": [["dph_total", "asc"]],
            "limit": _MAX_OFFERS,
            "allocated_storage": self.disk_gb,
        }

    def query(self) -> str:
        """Return the query as people read it."""
        rows = (
            (name + sign, f"{value:g}" if isinstance(value, float) else value) for name, sign, value in self._rows()
        )
        return " ".join(f"{name}{value}".replace(" ", "_") for name, value in rows)


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


def make_offer_filter(
    target: Target, env: Mapping[str, str], *, price: float = 0.0, disk_gb: float = 0.0, bid: float = 0.0
) -> OfferFilter:
    """Return what a target needs of an offer; price and disk above 0 override its own.

    `env` is the platform's object, which names ports; `price` and `bid` are dollars an hour.
    """
    where = f"images/{target.name}/target.toml"
    name = target.vast.gpu_name or convert_to_vast_gpu_name(target.hardware.gpu)
    if not name or not target.hardware.gpus:
        raise SpecError(
            _("target {target} names no GPU to search for").format(target=target.name),
            where=f"{where}: hardware",
            next_step=_("set hardware.gpus, and hardware.gpu or vast.gpu_name"),
        )
    if 0 < disk_gb < target.disk.need_gib:
        raise SpecError(
            _("--disk {disk:g}: the target needs {gb_text}, and no disk ever grows").format(
                disk=disk_gb, gb_text=format_gb(target.disk.need_gib)
            ),
            where=f"{where}: disk.need_gib",
            next_step=f"--disk {target.disk.need_gib:g} or more",
        )
    return OfferFilter(
        gpu_name=name,
        gpus=target.hardware.gpus,
        gpu_ram_gb=int(target.hardware.gpu_memory_gib * _REPORTED_MEMORY),
        min_cuda=target.hardware.cuda_driver,
        disk_gb=disk_gb or target.disk.need_gib,
        cores=target.hardware.cores,
        ram_gb=target.hardware.memory_gib,
        min_reliability=target.vast.min_reliability,
        direct_ports=1 + sum(key.startswith("-p ") for key in env),  # ssh
        max_hourly_usd=bid or price or target.vast.max_price,
        bid_hourly_usd=bid,
    )


def convert_to_vast_gpu_name(driver_gpu_name: str) -> str:
    """Return what the platform calls a GPU that the driver calls `driver_gpu_name`: RTX 5090, A100 SXM4."""
    words = re.sub(r"^NVIDIA |GeForce |-?\b\d+GB\b", "", driver_gpu_name).replace("-", " ")
    return " ".join(words.split())


def parse_offer(row: Mapping[str, Any], disk_gb: float, bid_hourly_usd: float = 0.0) -> Offer:
    """Return an offer of the platform's answer, priced with a disk of `disk_gb` GB; what it does not say counts as 0.

    With a `bid_hourly_usd` that is the price, beside the disk. An instance gets its share of the machine's memory,
    and what it takes beyond may be killed at any moment.
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
        price=bid_hourly_usd + storage if bid_hourly_usd else price,
        storage=storage,
        traffic=max(number("inet_down_cost"), number("inet_up_cost")),
        down_mbps=number("inet_down"),
        place=str(row.get("geolocation") or ""),
    )


def format_gb(size_gb: float) -> str:
    """Return a size of the platform's, which counts in GB of 10^9, a card's memory too."""
    return decimal_size_text(size_gb * 1e9)


def require_fitting_offers(rows: Sequence[Mapping[str, Any]], needs: OfferFilter) -> list[Offer]:
    """Return the offers that fit, the cheapest first, among those that the platform's filter let through.

    That knows neither shares of memory nor the price with this disk. `WorkFailed` where none fits.
    """
    fitting, mismatches = [], []
    for offer in (parse_offer(row, needs.disk_gb, needs.bid_hourly_usd) for row in rows):
        if offer.ram < needs.ram_gb:
            share, need = format_gb(offer.ram), format_gb(needs.ram_gb)
            mismatches.append(f"  offer {offer.id}: {share} of memory in its share, {need} needed")
        elif 0 < needs.max_hourly_usd < offer.price and not needs.bid_hourly_usd:
            mismatches.append(f"  offer {offer.id}: ${offer.price:.3f} an hour, at most ${needs.max_hourly_usd:g}")
        else:
            fitting.append(offer)
    if not fitting:
        head = f"no offer fits, of {len(rows)} that vast.ai has for: {needs.query()}"
        step = _("raise --price, or try again later: offers change by the minute")
        raise WorkFailed("\n".join([head, *mismatches[:_MAX_NAMED]]), next_step=step)
    return sorted(fitting, key=lambda offer: offer.price)


def format_offers(offers: Sequence[Offer]) -> str:
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
