"""Give the nodes of a cluster work whose result is known: each device, each node by itself, and nodes two by two."""

from __future__ import annotations

import queue
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlbox.amounts import card_text, columns, size_text
from rlbox.app import App
from rlbox.cluster.context import ClusterContext, open_context
from rlbox.cluster.facts import NodeFacts, NodeGpu
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import BASE, ClusterPlan
from rlbox.cluster.preflight import CHECKS, check_survey, format_findings
from rlbox.cluster.ray_runtime import RayRuntime, create_runtime
from rlbox.cluster.status import ClusterStatus, status_here
from rlbox.cluster.survey import askers, plan_ports, probe_ports, probe_ways
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import Finding, listed
from rlbox.i18n import _
from rlbox.system.json_files import parse_json_lines

_SLOW_GPU, _SLOW_CPU = 0.75, 0.33
"""Share of the median of devices of one kind: GPUs keep close together, processors have other work as well."""
_SLOW_WAY = 0.3
"""Share of what a way could give: of its link's speed, or of what both nodes do within themselves, if that is less."""
_BUSY = 10
_SEE = _("see who else is on it, its clock and its temperature: nvidia-smi there; or take another node")
_REPLACE = _("take another node, and have the card, or memory and processor, looked at")
_WAY = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")


@dataclass(frozen=True, kw_only=True)
class DeviceResult:
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
class AllReduceResult:
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
class BurnInResult:
    """What all nodes of a cluster did; `missing` are those whose stack has no torch."""

    devices: tuple[DeviceResult, ...] = ()
    ways: tuple[AllReduceResult, ...] = ()
    missing: tuple[str, ...] = ()

    def within(self, node: str) -> AllReduceResult | None:
        return next((way for way in self.ways if way.nodes == (node,)), None)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

    def text(self) -> str:
        """Return its figures."""
        rows = [("what", "where", "did"), *(_device_row(one) for one in self.devices), *map(_way_row, self.ways)]
        return "\n".join(columns(rows)) if len(rows) > 1 else ""


def _device_row(one: DeviceResult) -> tuple[str, str, str]:
    return "matrix product", f"{one.node} {one.device}", one.said or f"{one.tflops:.3g} TFLOP/s"


def _way_row(way: AllReduceResult) -> tuple[str, str, str]:
    if way.said:
        return "all-reduce", " - ".join(way.nodes), way.said
    share = f", {_bits(way) / (way.speed * 1e6):.0%} of its link" if way.speed else ""
    return "all-reduce", " - ".join(way.nodes), f"{size_text(way.bytes_s)}/s, {way.ranks} ranks{share}"


def _bits(way: AllReduceResult) -> float:
    return way.bytes_s * 8


def check_burn_in(proof: BurnInResult, facts: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
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


def _missing(proof: BurnInResult) -> Iterator[Finding]:
    for node in proof.missing:
        yield Finding(
            id="proof-no-torch",
            title=_("nothing was proven: the target has no torch"),
            level="warning",
            where=node,
            remedy=_("add torch to a [[stack]] of the target"),
        )


def _device(one: DeviceResult, facts: NodeFacts | None) -> Iterator[Finding]:
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


def _slow(proof: BurnInResult, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    kinds: dict[str, list[DeviceResult]] = defaultdict(list)
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


def _busy(proof: BurnInResult, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
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


def _card(one: DeviceResult, facts: NodeFacts | None) -> NodeGpu | None:
    """Return what the driver said of a device before; GPUs are counted as the driver does."""
    number = one.device.partition(":")[2]
    return next((gpu for gpu in facts.gpu.gpus if str(gpu.index) == number), None) if facts else None


def _whose(one: DeviceResult, facts: NodeFacts | None) -> str:
    card = _card(one, facts)
    held = [row for row in facts.gpu.holders if card and row.uuid == card.uuid] if facts else []
    words = [f"{row.user or 'somebody'} ({row.pid}, {row.words})" for row in held]
    return f": {listed(words)}" if words else ""


def _broken(way: AllReduceResult, where: str) -> Iterator[Finding]:
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


def _between(ways: Sequence[AllReduceResult], proof: BurnInResult) -> Iterator[Finding]:
    """Yield ways that failed or are slow; of a node all of whose ways are bad, while others are not, the node."""
    bad = {way: figure for way in ways if (figure := _figure(way, proof)) is not None}
    guilty = _guilty(ways, bad)
    for node in guilty:
        own = [way for way in bad if node in way.nodes]
        yield from _of_way(own[0], f"{node}: to {listed([_other(way, node) for way in own])}", bad[own[0]])
    for way, figure in bad.items():
        if guilty.isdisjoint(way.nodes):
            yield from _of_way(way, " and ".join(way.nodes), figure)


def _of_way(way: AllReduceResult, where: str, figure: str) -> Iterator[Finding]:
    if not way.sound:
        yield from _broken(way, where)
        return
    yield Finding(id="link-slow", title=_("the way between nodes is slow"), seen=figure, where=where, remedy=_WAY)


def _figure(way: AllReduceResult, proof: BurnInResult) -> str | None:
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


def _guilty(ways: Iterable[AllReduceResult], bad: Iterable[AllReduceResult]) -> set[str]:
    """Return the nodes all of whose ways are bad, where another node has one that is not."""
    known, wrong = list(ways), set(bad)
    fine = {node for way in known if way not in wrong for node in way.nodes}
    return {node for way in wrong for node in way.nodes if node not in fine} if fine else set()


def _other(way: AllReduceResult, node: str) -> str:
    return next(other for other in way.nodes if other != node)


_PROGRAM = Path(__file__).with_name("inside") / "prove.py"
_LIMIT_S = 180.0
_CPU_RANKS = 2


@dataclass(frozen=True, kw_only=True)
class _Seat:
    """A device of a node that takes part in an all-reduce."""

    node: str
    device: str


class _Prover:
    """The nodes of a cluster that answer, ready for work."""

    def __init__(self, context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> None:
        known = [member for member in plan.members if member.name in context.fleet.links]
        self._plan, self._facts = plan, facts
        self._carriers = {
            member.name: create_runtime(context.fleet.links[member.name], plan, member) for member in known
        }

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._carriers)

    def products(self) -> tuple[tuple[DeviceResult, ...], tuple[str, ...]]:
        """Return what every device did, and the nodes that have no torch."""
        with ThreadPoolExecutor(max(1, len(self._carriers))) as pool:
            found = dict(zip(self._carriers, pool.map(self._product, self._carriers), strict=True))
        missing = tuple(name for name, rows in found.items() if any("missing" in row for row in rows))
        rows = [(name, row) for name, known in found.items() if name not in missing for row in known]
        return tuple(_read_device(name, row) for name, row in rows), missing

    def _product(self, node: str) -> list[dict[str, Any]]:
        try:
            rows = list(_rows(self._carriers[node], ("product",)))
        except RlboxError as error:
            return [{"said": error.what}]
        return rows or [{"said": "it said nothing"}]

    def reduce(self, seats: Sequence[_Seat]) -> AllReduceResult:
        """Return how an all-reduce went; the first of `seats` is where all others meet."""
        nodes = tuple(dict.fromkeys(seat.node for seat in seats))
        first = self._plan.member(seats[0].node)
        host, told = first.address if first else "", queue.Queue[dict[str, Any] | None]()
        self._start(seats, 0, host, 0, told)
        rows, left = [], 1
        while left:
            row = told.get()
            if row is None:
                left -= 1
            elif "port" in row:
                left += len(seats) - 1
                for rank in range(1, len(seats)):
                    self._start(seats, rank, host, int(row["port"]), told)
            else:
                rows.append(row)
        said = next((str(row["said"]) for row in rows if row.get("said")), "")
        done = [row for row in rows if "bytes_s" in row]
        if not said and len(done) < len(seats):
            said = f"{len(done)} of {len(seats)} ranks came to the end"
        return AllReduceResult(
            nodes=nodes,
            ranks=len(seats),
            bytes_s=min((float(row["bytes_s"]) for row in done), default=0.0),
            wrong=sum(int(row["wrong"]) for row in done),
            said=said,
            speed=self._speed(nodes) if len(nodes) > 1 else 0,
        )

    def _start(self, seats: Sequence[_Seat], rank: int, host: str, port: int, told: queue.Queue[Any]) -> None:
        seat = seats[rank]
        words = ("rank", str(rank), str(len(seats)), seat.device, host, str(port))

        def run() -> None:
            try:
                for row in _rows(self._carriers[seat.node], words):
                    told.put(row)
            except RlboxError as error:
                told.put({"said": f"{seat.node}: {error.what}"})
            told.put(None)

        threading.Thread(target=run, name=f"rank {rank} on {seat.node}", daemon=True).start()

    def _speed(self, nodes: Sequence[str]) -> int:
        """Return the speed of the slower end of a link, 0 where one does not tell."""
        members = [member for member in self._plan.members if member.name in nodes and member.name in self._facts]
        ends = [self._facts[member.name].interface_of(member.address) for member in members]
        return min((end.speed if end else 0 for end in ends), default=0)


def _rows(carrier: RayRuntime, words: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield what the program tells; lines that are none of its own are passed over."""
    return parse_json_lines(carrier.execute(("-I", "-c", _PROGRAM.read_text("utf-8"), f"{_LIMIT_S:g}", *words)))


def _read_device(node: str, row: Mapping[str, Any]) -> DeviceResult:
    return DeviceResult(
        node=node,
        device=str(row.get("device", "")) or "its stack",
        name=str(row.get("name", "")),
        tflops=float(row.get("tflops", 0.0)),
        wrong=bool(row.get("wrong")),
        said=str(row.get("said", "")),
        free=int(row.get("free", 0)),
        total=int(row.get("total", 0)),
    )


def run_burn_in(
    context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]
) -> tuple[BurnInResult, tuple[Finding, ...]]:
    """Return what the nodes of a cluster that answer did, and what of it is not as it should be.

    First every device, all nodes at once; then an all-reduce within each node, one after the other where they share
    nothing but the eye; then over pairs, one at a time, so that no figure is of two: all of a few nodes, of many the
    head with everybody and each with its neighbours.
    """
    prover = _Prover(context, plan, facts)
    context.app.say(f"proving {', '.join(prover.nodes)}: matrix products, then all-reduce")
    devices, missing = prover.products()
    able = [name for name in prover.nodes if name not in missing and _sound(devices, name)]
    seats = {name: [_Seat(node=name, device=one.device) for one in devices if one.node == name] for name in able}
    with ThreadPoolExecutor(max(1, len(able))) as pool:
        within = list(pool.map(prover.reduce, filter(None, (_alone(seats[name]) for name in able))))
    ways = [prover.reduce([*seats[one], *seats[other]]) for one, other in _pairs(able)]
    proof = BurnInResult(devices=devices, ways=(*within, *ways), missing=missing)
    return proof, check_burn_in(proof, facts)


def _sound(devices: Sequence[DeviceResult], node: str) -> bool:
    return all(not one.said for one in devices if one.node == node)


def _alone(seats: Sequence[_Seat]) -> list[_Seat]:
    """Return who takes part within a node: all its GPUs, or two on the processor; nobody where there is one GPU."""
    if seats and seats[0].device == "cpu":
        return [seats[0]] * _CPU_RANKS
    return list(seats) if len(seats) > 1 else []


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    found = [(one, other) for other in names for one in askers(names, other)]
    return list(
        dict.fromkeys((one, other) if names.index(one) < names.index(other) else (other, one) for one, other in found)
    )


def require_burn_in(context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> BurnInResult:
    """Return what the nodes did; `NodeError` names those that did not stand it, with the figure."""
    proof, found = run_burn_in(context, plan, facts)
    errors = [one for one in found if one.level == "error"]
    if errors:
        raise NodeError(
            _("cluster {plan} does not stand the proof\n{problems_text}").format(
                plan=plan.name, problems_text=format_findings(found)
            ),
            where=", ".join(one.where for one in errors),
            next_step=errors[0].remedy,
        )
    return proof


@dataclass(frozen=True, kw_only=True)
class ExaminationResult:
    """What was found on how many nodes by how many questions; `status` of the cluster, None where there is none.

    `proof` are the figures of the work that its nodes were given, None where they were given none.
    """

    findings: tuple[Finding, ...]
    nodes: int
    checks: int
    status: ClusterStatus | None
    proof: BurnInResult | None = None

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return any(one.level == "error" for one in self.findings)


def examine_cluster(
    app: App, options: ClusterOptions, paths: tuple[str, ...] = (), *, work: bool = False
) -> ExaminationResult:
    """Return what is wrong with the nodes of a cluster, or of one to come; with `work` by work that proves them.

    Raises
    ------
    NodeError
        They were to be given work, and there is no cluster.
    """
    with open_context(app, options) as context:
        survey = context.survey(paths)
        standing = context.require_standing(survey) if work else context.standing(survey)
        status = status_here(context, survey, standing) if standing else None
        if survey.facts:
            survey = probe_ways(context.fleet, survey)
            if standing is None:
                base = context.target.cluster.port
                survey = probe_ports(context.fleet, survey, plan_ports(survey, context.name, base, BASE))
        happened = status.failures if status else ()
        named = {one.where for one in happened}  # it says more than that a node does not answer
        unreached = [one for one in context.fleet.unreached if one.where not in named]
        found = check_survey(survey, context.needs(paths), unreached)
        found = (*happened, *(status.listens if status else ()), *found)
        proof = None
        if work and standing:
            proof, proven = run_burn_in(context, standing.plan, survey.facts)
            found = (*found, *proven)
        return ExaminationResult(
            findings=found, nodes=len(context.wishes), checks=len(CHECKS), status=status, proof=proof
        )
