"""Give the nodes of a cluster work whose result is known: each node by itself, then each with its neighbour."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rlbox.amounts import columns, size_text
from rlbox.cluster.checks import format_findings
from rlbox.cluster.context import ClusterContext
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.plan import ClusterMember, ClusterPlan
from rlbox.cluster.runtime import create_runtime, run_inside
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.json_files import parse_json_lines

_SLOW_GPU, _SLOW_CPU = 0.75, 0.33
"""Share of the median of devices of one kind: GPUs keep close together, processors have other work as well."""

_SLOW_LINK = 0.3
"""Share of what a link could give: its speed, or what both nodes do within themselves, if that is less."""

_LIMIT_S = 180.0
_CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class DeviceResult:
    """What one device did: `tflops` of its matrix product, whether that was `wrong`; `said` why there was none.

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
    def is_sound(self) -> bool:
        return not self.said and not self.wrong

    @property
    def figures(self) -> str:
        share = f" ({self.bytes_s * 8 / (self.speed * 1e6):.0%} of its link)" if self.speed else ""
        return f"{size_text(self.bytes_s)}/s{share}"


@dataclass(frozen=True, kw_only=True)
class BurnInResult:
    """What all nodes of a cluster did; `missing` are those whose stack has no torch."""

    devices: tuple[DeviceResult, ...] = ()
    ways: tuple[AllReduceResult, ...] = ()
    missing: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        rows = [("what", "where", "did")]
        for one in self.devices:
            rows.append(("matrix product", f"{one.node} {one.device}", one.said or f"{one.tflops:.3g} TFLOP/s"))
        for way in self.ways:
            rows.append(("all-reduce", " - ".join(way.nodes), way.said or f"{way.figures}, {way.ranks} ranks"))
        return "\n".join(columns(rows)) if len(rows) > 1 else ""


# ---- what is wrong


def check_burn_in(result: BurnInResult) -> tuple[Finding, ...]:
    """Return what is not as it should be; a link to a node that is bad by itself is no finding of its own."""
    see = _("see who else is on it, its clock and its temperature: nvidia-smi there; or take another node")
    replace = _("take another node, and have the card, or memory and processor, looked at")
    torch = _("add torch to a [[stack]] of the target")
    own = []
    for node in result.missing:
        title = _("nothing was proven: the target has no torch")
        own.append(Finding(id="proof-no-torch", title=title, level="warning", where=node, remedy=torch))
    for one in result.devices:
        where = f"{one.node}: {one.device}"
        if one.said:
            title = _("a matrix product failed on it")
            own.append(Finding(id="product-failed", title=title, seen=one.said, where=where, remedy=see))
        elif one.wrong:
            title, seen = _("its matrix product is wrong"), _("at {tflops:.3g} TFLOP/s").format(tflops=one.tflops)
            own.append(Finding(id="product-wrong", title=title, seen=seen, where=where, remedy=replace))
    for one, usual in _list_slow_devices(result.devices):
        title = _("it computes slower than others of its kind")
        seen = _("{tflops:.3g} TFLOP/s, the others {usual:.3g}").format(tflops=one.tflops, usual=usual)
        level = "warning" if one.device == _CPU else "error"
        where = f"{one.node}: {one.device}"
        own.append(Finding(id="device-slow", title=title, level=level, seen=seen, where=where, remedy=see))
    for way in result.ways:
        own += _check_sums(way) if len(way.nodes) == 1 else ()
    bad = {one.where.partition(":")[0] for one in own if one.level == "error"}
    links = [way for way in result.ways if len(way.nodes) == 2 and bad.isdisjoint(way.nodes)]
    return (*own, *(finding for way in links for finding in _check_link(way, result)))


def _list_slow_devices(devices: Sequence[DeviceResult]) -> Iterator[tuple[DeviceResult, float]]:
    """Yield devices that are slower than others of their kind, each with the median TFLOP/s of those."""
    kinds: dict[str, list[DeviceResult]] = defaultdict(list)
    for one in devices:
        if one.tflops:
            kinds[one.name].append(one)
    for same in kinds.values():
        for one in same if len(same) > 1 else ():
            usual = statistics.median(other.tflops for other in same if other is not one)
            if one.tflops < usual * (_SLOW_CPU if one.device == _CPU else _SLOW_GPU):
                yield one, usual


def _check_sums(way: AllReduceResult) -> Iterator[Finding]:
    where = " and ".join(way.nodes)
    if way.said:
        title = _("an all-reduce failed there")
        remedy = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")
        yield Finding(id="reduce-failed", title=title, seen=way.said, where=where, remedy=remedy)
    elif way.wrong:
        title, seen = _("sums of an all-reduce are wrong there"), _("{wrong} of them").format(wrong=way.wrong)
        remedy = _("take another node, and have the card, or memory and processor, looked at")
        yield Finding(id="reduce-wrong", title=title, seen=seen, where=where, remedy=remedy)


def _check_link(way: AllReduceResult, result: BurnInResult) -> Iterator[Finding]:
    yield from _check_sums(way)
    within = [one.bytes_s for one in result.ways if len(one.nodes) == 1 and one.nodes[0] in way.nodes and one.is_sound]
    possible = min([*within, *([way.speed * 1e6 / 8] if way.speed else [])], default=0.0)
    if way.is_sound and way.bytes_s < possible * _SLOW_LINK:
        inner = f", {size_text(min(within))}/s within the nodes" if within else ""
        remedy = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")
        where, title = " and ".join(way.nodes), _("the way between nodes is slow")
        yield Finding(id="link-slow", title=title, seen=f"{way.figures}{inner}", where=where, remedy=remedy)


# ---- the work


class _Rank(NamedTuple):
    """A device of a node that takes part in an all-reduce."""

    node: str
    device: str


def run_burn_in(
    context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]
) -> tuple[BurnInResult, tuple[Finding, ...]]:
    """Return what the nodes of a cluster that answer did, and what of it is not as it should be.

    First all nodes at once, each by itself; then pairs of neighbours, one at a time, so that no figure is of two.
    """
    nodes = [member for member in plan.members if member.name in context.pool.nodes]
    context.app.say(f"proving {', '.join(one.name for one in nodes)}: matrix products, then all-reduce")
    devices: list[DeviceResult] = []
    ways: list[AllReduceResult] = []
    ranks = {member.name: _list_ranks(member) for member in nodes}
    groups = [same * 2 if same[0].device == _CPU else same for same in ranks.values()]
    with ThreadPoolExecutor(max(1, len(groups))) as pool:
        reports = list(pool.map(lambda group: _run_group(context, plan, group), groups))
    missing = tuple(group[0].node for group, rows in zip(groups, reports, strict=True) if "missing" in rows[0])
    for group, rows in zip(groups, reports, strict=True):
        if group[0].node not in missing:
            devices += [_read_device(rank, row) for rank, row in dict(zip(group, rows, strict=True)).items()]
            ways += [_read_all_reduce(group, rows, speed=0)] if len(group) > 1 else []
    failed = {*missing, *(one.node for one in devices if one.said)}
    able = [one for one in nodes if one.name not in failed]
    pairs = [*itertools.pairwise(able), *([(able[0], able[-1])] if len(able) > 2 else [])]
    for pair in pairs:
        ends = [facts[one.name].find_address(one.address) for one in pair if one.name in facts]
        group = [rank for one in pair for rank in ranks[one.name]]
        speed = min((end.speed if end else 0 for end in ends), default=0)
        ways.append(_read_all_reduce(group, _run_group(context, plan, group), speed=speed))
    result = BurnInResult(devices=tuple(devices), ways=tuple(ways), missing=missing)
    return result, check_burn_in(result)


def _list_ranks(member: ClusterMember) -> list[_Rank]:
    gpus = [_Rank(member.name, f"cuda:{number}") for number in range(member.gpus)]
    return gpus or [_Rank(member.name, _CPU)]


def _run_group(context: ClusterContext, plan: ClusterPlan, ranks: Sequence[_Rank]) -> list[dict[str, Any]]:
    """Return what each rank of an all-reduce reports; all meet at the first."""
    members = {member.name: member for member in plan.members}
    meeting = (members[ranks[0].node].address, str(plan.ports.of("burn-in")))

    def run(number: int) -> dict[str, Any]:
        member = members[ranks[number].node]
        runtime = create_runtime(context.pool.nodes[member.name], plan, member)
        arguments = (f"{_LIMIT_S:g}", str(number), str(len(ranks)), ranks[number].device, *meeting)
        report: dict[str, Any] = {}
        try:
            for row in parse_json_lines(run_inside(runtime, "burn_in.py", *arguments)):
                report.update(row)
        except RlboxError as error:
            report.setdefault("product", {"said": error.what})
        return report or {"product": {"said": "it said nothing"}}

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, range(len(ranks))))


def _read_device(rank: _Rank, report: Mapping[str, Any]) -> DeviceResult:
    return DeviceResult(node=rank.node, device=rank.device, **report.get("product", {"said": "it said nothing"}))


def _read_all_reduce(ranks: Sequence[_Rank], reports: Sequence[Mapping[str, Any]], *, speed: int) -> AllReduceResult:
    rows = [report.get("reduce", {}) for report in reports]
    done = [row for row in rows if "bytes_s" in row]
    said = next((str(row["said"]) for row in rows if "said" in row), "")
    if not said and len(done) < len(ranks):
        said = f"{len(done)} of {len(ranks)} ranks came to the end"
    return AllReduceResult(
        nodes=tuple(dict.fromkeys(rank.node for rank in ranks)),
        ranks=len(ranks),
        bytes_s=min((float(row["bytes_s"]) for row in done), default=0.0),
        wrong=sum(int(row["wrong"]) for row in done),
        said=said,
        speed=speed,
    )


def require_burn_in(context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> BurnInResult:
    """Return what the nodes did; `NodeError` names those that failed, with the figure."""
    result, findings = run_burn_in(context, plan, facts)
    errors = [one for one in findings if one.level == "error"]
    if errors:
        raise NodeError(
            _("cluster {plan} does not stand the proof\n{problems_text}").format(
                plan=plan.name, problems_text=format_findings(findings)
            ),
            where=", ".join(one.where for one in errors),
            next_step=errors[0].remedy,
        )
    return result
