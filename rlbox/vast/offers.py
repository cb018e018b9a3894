"""Which offers of vast.ai fit a target, what they cost, and the query that finds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rlbox.amounts import columns, decimal_size_text
from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.target.target import Target

_REPORTED = 0.97
"""Part of its nominal memory that a card reports at least: one of 32 GB tells 31.8."""
_HOURS_A_MONTH = 30 * 24
_MOST_OFFERS = 64
Gigabytes = float
UsdPerHour = float
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
        fixed = {"verified": {"eq": True}, "external": {"eq": False}, "rentable": {"eq": True}}
        order = {
            "type": "bid" if self.bid_hourly_usd else "on-demand",
            "order": [["dph_total", "asc"]],
            "limit": _MOST_OFFERS,
        }
        return {**fixed, **filters, **order, "allocated_storage": self.disk_gb}

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
    disk: Gigabytes
    cores: float
    ram: Gigabytes
    reliability: float
    price: UsdPerHour
    storage: UsdPerHour
    traffic: float
    down_mbps: float
    place: str

    def as_json(self) -> dict[str, Any]:
        return {name: round(part, 4) if isinstance(part, float) else part for name, part in asdict(self).items()}


def make_offer_filter(
    target: Target,
    *,
    disk_gb_override: float = 0.0,
    max_hourly_usd_override: float = 0.0,
    extra_port_count: int = 0,
    bid_hourly_usd: float = 0.0,
) -> OfferFilter:
    """Return what a target needs of an offer; disk and price above 0 override its own.

    Raises
    ------
    SpecError
        The target does not say which GPU it is for, or asks for less disk than it says it needs.
    """
    name = target.vast.gpu_name or convert_to_vast_gpu_name(target.hardware.gpu)
    if not name or not target.hardware.gpus:
        raise SpecError(
            _("target {target} names no GPU to search for").format(target=target.name),
            where=f"images/{target.name}/target.toml: hardware",
            next_step=_("set hardware.gpus, and hardware.gpu or vast.gpu_name"),
        )
    if 0 < disk_gb_override < target.disk.need_gib:
        raise SpecError(
            _("--disk {disk:g}: the target needs {gb_text}, and no disk ever grows").format(
                disk=disk_gb_override, gb_text=format_gb(target.disk.need_gib)
            ),
            where=f"images/{target.name}/target.toml: disk.need_gib",
            next_step=f"--disk {target.disk.need_gib:g} or more",
        )
    return OfferFilter(
        gpu_name=name,
        gpus=target.hardware.gpus,
        gpu_ram_gb=int(target.hardware.gpu_memory_gib * _REPORTED),
        min_cuda=target.hardware.cuda_driver,
        disk_gb=disk_gb_override or target.disk.need_gib,
        cores=target.hardware.cores,
        ram_gb=target.hardware.memory_gib,
        min_reliability=target.vast.min_reliability,
        direct_ports=1 + extra_port_count,  # ssh
        max_hourly_usd=bid_hourly_usd or max_hourly_usd_override or target.vast.max_price,
        bid_hourly_usd=bid_hourly_usd,
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
    share = float(row.get("gpu_frac") or 1.0)
    storage = float(row.get("storage_cost") or 0.0) * disk_gb / _HOURS_A_MONTH
    counted = row.get("storage_total_cost")
    total = float(row.get("dph_total") or 0.0)
    total = total if counted is None else total - float(counted) + storage
    return Offer(
        id=int(row["id"]),
        gpu_name=str(row.get("gpu_name") or ""),
        gpus=int(row.get("num_gpus") or 0),
        cuda=float(row.get("cuda_max_good") or 0),
        disk=float(row.get("disk_space") or 0),
        cores=float(row.get("cpu_cores_effective") or 0),
        ram=float(row.get("cpu_ram") or 0) / 1000 * share,
        reliability=float(row.get("reliability2") or row.get("reliability") or 0),
        price=bid_hourly_usd + storage if bid_hourly_usd else total,
        storage=storage,
        traffic=max(float(row.get("inet_down_cost") or 0), float(row.get("inet_up_cost") or 0)),
        down_mbps=float(row.get("inet_down") or 0),
        place=str(row.get("geolocation") or ""),
    )


def format_gb(size_gb: float) -> str:
    """Return a size of the platform's, which counts in GB of 10^9, a card's memory too."""
    return decimal_size_text(size_gb * 1e9)


class RankedOffers(NamedTuple):
    """Offers that fit, the cheapest first, and what each of the others lacks, by id."""

    fitting: tuple[Offer, ...]
    mismatch_by_offer_id: dict[int, str]


def rank_offers(offers: Iterable[Offer], needs: OfferFilter) -> RankedOffers:
    """Sort out the offers that fit, among those that the platform's filter let through.

    That knows neither shares of memory nor the price with this disk.
    """
    fitting, mismatches = [], {}
    for offer in offers:
        if offer.ram < needs.ram_gb:
            mismatches[offer.id] = f"{format_gb(offer.ram)} of memory in its share, {format_gb(needs.ram_gb)} needed"
        elif 0 < needs.max_hourly_usd < offer.price and not needs.bid_hourly_usd:
            mismatches[offer.id] = f"${offer.price:.3f} an hour, at most ${needs.max_hourly_usd:g}"
        else:
            fitting.append(offer)
    return RankedOffers(tuple(sorted(fitting, key=lambda offer: offer.price)), mismatches)


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
