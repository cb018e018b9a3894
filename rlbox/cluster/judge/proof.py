"""Judge what nodes did when they were given work whose result is known: which node, with the figure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import card_text, columns, size_text
from rlbox.cluster.facts import NodeFacts, NodeGpu
from rlbox.findings import Finding, listed
from rlbox.i18n import _

_SLOW_GPU, _SLOW_CPU = 0.75, 0.33
"""Share of the median of devices of one kind: GPUs keep close together, processors have other work as well."""
_SLOW_WAY = 0.3
"""Share of what a way could give: of its link's speed, or of what both nodes do within themselves, if that is less."""
_BUSY = 10
_SEE = _("see who else is on it, its clock and its temperature: nvidia-smi there; or take another node")
_REPLACE = _("take another node, and have the card, or memory and processor, looked at")
_WAY = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")


@dataclass(frozen=True, kw_only=True)
class DeviceProof:
    """What one device did: `tflops` of its matrix product, `wrong` if that was; `said` why there was none.

    `device` is `cpu` or `cuda:N`, `name` its kind; memory in bytes, 0 where it has none of its own.
    """

    node: str
    device: str
    name: str = ""
    tflops: float = 0.0
    wrong: bool = False
    said: str = ""
    free: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class WayProof:
    """An all-reduce within one node, or between two: bytes each second, how many sums were wrong, why there was none.

    `speed` is that of the link between them (Mbit/s), 0 where it is none or does not tell.
    """

    nodes: tuple[str, ...]
    ranks: int
    bytes_s: float = 0.0
    wrong: int = 0
    said: str = ""
    speed: int = 0

    @property
    def sound(self) -> bool:
        """Whether it came to its end with the right sums."""
        return not self.said and not self.wrong


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What all nodes of a cluster did; `missing` are those whose stack has no torch."""

    devices: tuple[DeviceProof, ...] = ()
    ways: tuple[WayProof, ...] = ()
    missing: tuple[str, ...] = ()

    def within(self, node: str) -> WayProof | None:
        """Return the all-reduce within a node."""
        return next((way for way in self.ways if way.nodes == (node,)), None)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

    def text(self) -> str:
        """Return its figures."""
        rows = [("what", "where", "did"), *(_device_row(one) for one in self.devices), *map(_way_row, self.ways)]
        return "\n".join(columns(rows)) if len(rows) > 1 else ""


def _device_row(one: DeviceProof) -> tuple[str, str, str]:
    return "matrix product", f"{one.node} {one.device}", one.said or f"{one.tflops:.3g} TFLOP/s"


def _way_row(way: WayProof) -> tuple[str, str, str]:
    if way.said:
        return "all-reduce", " - ".join(way.nodes), way.said
    share = f", {_bits(way) / (way.speed * 1e6):.0%} of its link" if way.speed else ""
    return "all-reduce", " - ".join(way.nodes), f"{size_text(way.bytes_s)}/s, {way.ranks} ranks{share}"


def _bits(way: WayProof) -> float:
    return way.bytes_s * 8


def judge_proof(proof: Proof, facts: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
    """Return what of it is not as it should be; a way to a node that is bad by itself is no finding of its own."""
    own = [
        *_missing(proof),
        *(finding for one in proof.devices for finding in _device(one, facts.get(one.node))),
        *_slow(proof, facts),
        *_busy(proof, facts),
        *(finding for way in proof.ways if len(way.nodes) == 1 for finding in _broken(way, way.nodes[0])),
    ]
    bad = {one.where.partition(":")[0] for one in own if one.level == "error"}
    ways = [way for way in proof.ways if len(way.nodes) == 2]
    return (*own, *_between([way for way in ways if bad.isdisjoint(way.nodes)], proof))


def _missing(proof: Proof) -> Iterator[Finding]:
    for node in proof.missing:
        yield Finding(
            id="proof-no-torch",
            title=_("nothing was proven: the target has no torch"),
            level="warning",
            where=node,
            remedy=_("add torch to a [[stack]] of the target"),
        )


def _device(one: DeviceProof, facts: NodeFacts | None) -> Iterator[Finding]:
    where = f"{one.node}: {one.device}"
    if one.said and one.total and one.free < one.total / 2:
        yield Finding(
            id="gpu-filled",
            title=_("its GPU is filled by somebody"),
            seen=_("{free} of {total} free{whose}").format(
                free=card_text(one.free), total=card_text(one.total), whose=_whose(one, facts)
            ),
            where=where,
            remedy=_SEE,
        )
    elif one.said:
        yield Finding(
            id="product-failed",
            title=_("a matrix product failed on it"),
            seen=one.said,
            where=where,
            remedy=_REPLACE,
        )
    elif one.wrong:
        yield Finding(
            id="product-wrong",
            title=_("its matrix product is wrong"),
            seen=_("at {tflops:.3g} TFLOP/s").format(tflops=one.tflops),
            where=where,
            remedy=_REPLACE,
        )


def _slow(proof: Proof, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    kinds: dict[str, list[DeviceProof]] = defaultdict(list)
    for one in proof.devices:
        if one.tflops:
            kinds[one.name].append(one)
    for devices in kinds.values():
        for one in devices if len(devices) > 1 else ():
            usual = statistics.median(other.tflops for other in devices if other is not one)
            if one.tflops < usual * (_SLOW_CPU if one.device == "cpu" else _SLOW_GPU):
                yield Finding(
                    id="device-slow",
                    title=_("it computes slower than others of its kind"),
                    level="warning" if one.device == "cpu" else "error",
                    seen=_("{tflops:.3g} TFLOP/s, the others {usual:.3g}{whose}").format(
                        tflops=one.tflops, usual=usual, whose=_whose(one, facts.get(one.node))
                    ),
                    where=f"{one.node}: {one.device}",
                    remedy=_SEE,
                )


def _busy(proof: Proof, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield GPUs that worked before they were given anything."""
    for one in proof.devices:
        card = _card(one, facts.get(one.node))
        if card and card.busy >= _BUSY:
            yield Finding(
                id="gpu-busy",
                title=_("its GPU is kept busy by somebody"),
                seen=_("{busy} % of the time{whose}").format(busy=card.busy, whose=_whose(one, facts.get(one.node))),
                where=f"{one.node}: {one.device}",
                remedy=_SEE,
            )


def _card(one: DeviceProof, facts: NodeFacts | None) -> NodeGpu | None:
    """Return what the driver said of a device before; GPUs are counted as the driver does."""
    number = one.device.partition(":")[2]
    return next((gpu for gpu in facts.gpu.gpus if str(gpu.index) == number), None) if facts else None


def _whose(one: DeviceProof, facts: NodeFacts | None) -> str:
    card = _card(one, facts)
    held = [row for row in facts.gpu.holders if card and row.uuid == card.uuid] if facts else []
    words = [f"{row.user or 'somebody'} ({row.pid}, {row.words})" for row in held]
    return f": {listed(words)}" if words else ""


def _broken(way: WayProof, where: str) -> Iterator[Finding]:
    if way.said:
        yield Finding(
            id="reduce-failed", title=_("an all-reduce failed there"), seen=way.said, where=where, remedy=_WAY
        )
    elif way.wrong:
        yield Finding(
            id="reduce-wrong",
            title=_("sums of an all-reduce are wrong there"),
            seen=_("{wrong} of them").format(wrong=way.wrong),
            where=where,
            remedy=_REPLACE,
        )


def _between(ways: Sequence[WayProof], proof: Proof) -> Iterator[Finding]:
    """Yield ways that failed or are slow; of a node all of whose ways are bad, while others are not, the node."""
    bad = {way: figure for way in ways if (figure := _figure(way, proof)) is not None}
    guilty = _guilty(ways, bad)
    for node in guilty:
        own = [way for way in bad if node in way.nodes]
        yield from _of_way(own[0], f"{node}: to {listed([_other(way, node) for way in own])}", bad[own[0]])
    for way, figure in bad.items():
        if guilty.isdisjoint(way.nodes):
            yield from _of_way(way, " and ".join(way.nodes), figure)


def _of_way(way: WayProof, where: str, figure: str) -> Iterator[Finding]:
    if not way.sound:
        yield from _broken(way, where)
        return
    yield Finding(id="link-slow", title=_("the way between nodes is slow"), seen=figure, where=where, remedy=_WAY)


def _figure(way: WayProof, proof: Proof) -> str | None:
    """Return what is wrong with a way between two nodes, None where nothing is."""
    if not way.sound:
        return way.said
    alone = [_bits(one) for node in way.nodes if (one := proof.within(node)) and one.sound]
    could = min([*alone, *([way.speed * 1e6] if way.speed else [])], default=0.0)
    if _bits(way) >= could * _SLOW_WAY:
        return None
    link = f"{_bits(way) / (way.speed * 1e6):.0%} of its link's {way.speed / 1000:g} Gbit/s" if way.speed else ""
    within = f"{size_text(min(alone) / 8)}/s within the nodes" if alone else ""
    return ", ".join(filter(None, (f"{size_text(way.bytes_s)}/s", link, within)))


def _guilty(ways: Iterable[WayProof], bad: Iterable[WayProof]) -> set[str]:
    """Return the nodes all of whose ways are bad, where another node has one that is not."""
    known, wrong = list(ways), set(bad)
    fine = {node for way in known if way not in wrong for node in way.nodes}
    return {node for way in wrong for node in way.nodes if node not in fine} if fine else set()


def _other(way: WayProof, node: str) -> str:
    return next(other for other in way.nodes if other != node)
