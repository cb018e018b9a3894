"""Give the nodes of a cluster work whose result is known: each device, each node by itself, and nodes two by two."""

from __future__ import annotations

import queue
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import card_text, columns, size_text
from rlbox.app import App
from rlbox.cluster.checks import CHECKS, check_nodes, describe_gpu_users, format_findings
from rlbox.cluster.context import ClusterContext, open_context
from rlbox.cluster.facts import NodeFacts, NodeGpu
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import BASE, ClusterPlan
from rlbox.cluster.probe import list_probers, plan_ports, probe_endpoints, probe_ports
from rlbox.cluster.runtime import RayRuntime, create_runtime, run_inside
from rlbox.cluster.status import ClusterStatus, find_status
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.json_files import parse_json_lines

_SLOW_GPU, _SLOW_CPU = 0.75, 0.33
"""Share of the median of devices of one kind: GPUs keep close together, processors have other work as well."""

_SLOW_LINK = 0.3
"""Share of what a link could give: its speed, or what both nodes do within themselves, if that is less."""

_BUSY_PERCENT = 10
_LIMIT_S = 180.0
_CPU_RANKS = 2
_SEE = _("see who else is on it, its clock and its temperature: nvidia-smi there; or take another node")
_REPLACE = _("take another node, and have the card, or memory and processor, looked at")
_LINK = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")


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
    def link_share(self) -> str:
        """Its share of the link's speed, empty where that is not known."""
        return f"{self.bytes_s * 8 / (self.speed * 1e6):.0%} of its link" if self.speed else ""


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
            figures = ", ".join(filter(None, (f"{size_text(way.bytes_s)}/s", f"{way.ranks} ranks", way.link_share)))
            rows.append(("all-reduce", " - ".join(way.nodes), way.said or figures))
        return "\n".join(columns(rows)) if len(rows) > 1 else ""


# ---- what is wrong


def check_burn_in(result: BurnInResult, facts: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
    """Return what is not as it should be; a link to a node that is bad by itself is no finding of its own."""
    own = [
        *(
            Finding(
                id="proof-no-torch",
                title=_("nothing was proven: the target has no torch"),
                level="warning",
                where=node,
                remedy=_("add torch to a [[stack]] of the target"),
            )
            for node in result.missing
        ),
        *(finding for one in result.devices for finding in _check_device(one, facts.get(one.node))),
        *_check_speed(result.devices, facts),
        *(finding for way in result.ways if len(way.nodes) == 1 for finding in _check_sums(way)),
    ]
    bad = {one.where.partition(":")[0] for one in own if one.level == "error"}
    links = [way for way in result.ways if len(way.nodes) == 2 and bad.isdisjoint(way.nodes)]
    return (*own, *(finding for way in links for finding in _check_link(way, result)))


def _check_device(one: DeviceResult, facts: NodeFacts | None) -> Iterator[Finding]:
    where, gpu = f"{one.node}: {one.device}", _find_gpu(one, facts)
    users = describe_gpu_users(facts, [gpu]) if gpu else ""
    if one.said and one.total and one.free < one.total / 2:
        seen = _("{free} of {total} free{whose}").format(
            free=card_text(one.free), total=card_text(one.total), whose=users
        )
        yield Finding(id="gpu-filled", title=_("its GPU is filled by somebody"), seen=seen, where=where, remedy=_SEE)
    elif one.said:
        title = _("a matrix product failed on it")
        yield Finding(id="product-failed", title=title, seen=one.said, where=where, remedy=_REPLACE)
    elif one.wrong:
        seen = _("at {tflops:.3g} TFLOP/s").format(tflops=one.tflops)
        title = _("its matrix product is wrong")
        yield Finding(id="product-wrong", title=title, seen=seen, where=where, remedy=_REPLACE)
    if gpu and gpu.busy >= _BUSY_PERCENT:  # before it was given anything
        seen = _("{busy} % of the time{whose}").format(busy=gpu.busy, whose=users)
        title = _("its GPU is kept busy by somebody")
        yield Finding(id="gpu-busy", title=title, seen=seen, where=where, remedy=_SEE)


def _find_gpu(one: DeviceResult, facts: NodeFacts | None) -> NodeGpu | None:
    """Return what the driver said of a device before; GPUs are counted as the driver does."""
    index = one.device.partition(":")[2]
    return next((gpu for gpu in facts.gpu.gpus if str(gpu.index) == index), None) if facts else None


def _check_speed(devices: Sequence[DeviceResult], facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    kinds: dict[str, list[DeviceResult]] = defaultdict(list)
    for one in devices:
        if one.tflops:
            kinds[one.name].append(one)
    for same in kinds.values():
        for one in same if len(same) > 1 else ():
            usual, is_cpu = statistics.median(other.tflops for other in same if other is not one), one.device == "cpu"
            if one.tflops < usual * (_SLOW_CPU if is_cpu else _SLOW_GPU):
                gpu = _find_gpu(one, facts.get(one.node))
                users = describe_gpu_users(facts.get(one.node), [gpu]) if gpu else ""
                yield Finding(
                    id="device-slow",
                    title=_("it computes slower than others of its kind"),
                    level="warning" if is_cpu else "error",
                    seen=_("{tflops:.3g} TFLOP/s, the others {usual:.3g}{whose}").format(
                        tflops=one.tflops, usual=usual, whose=users
                    ),
                    where=f"{one.node}: {one.device}",
                    remedy=_SEE,
                )


def _check_sums(way: AllReduceResult) -> Iterator[Finding]:
    where = " and ".join(way.nodes)
    if way.said:
        title = _("an all-reduce failed there")
        yield Finding(id="reduce-failed", title=title, seen=way.said, where=where, remedy=_LINK)
    elif way.wrong:
        seen = _("{wrong} of them").format(wrong=way.wrong)
        title = _("sums of an all-reduce are wrong there")
        yield Finding(id="reduce-wrong", title=title, seen=seen, where=where, remedy=_REPLACE)


def _check_link(way: AllReduceResult, result: BurnInResult) -> Iterator[Finding]:
    yield from _check_sums(way)
    within = [one.bytes_s for one in result.ways if len(one.nodes) == 1 and one.nodes[0] in way.nodes and one.is_sound]
    possible = min([*within, *([way.speed * 1e6 / 8] if way.speed else [])], default=0.0)
    if way.is_sound and way.bytes_s < possible * _SLOW_LINK:
        inner = f"{size_text(min(within))}/s within the nodes" if within else ""
        seen = ", ".join(filter(None, (f"{size_text(way.bytes_s)}/s", way.link_share, inner)))
        where = " and ".join(way.nodes)
        yield Finding(id="link-slow", title=_("the way between nodes is slow"), seen=seen, where=where, remedy=_LINK)


# ---- the work


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """A device of a node that takes part in an all-reduce."""

    node: str
    device: str


class _Prover:
    """The nodes of a cluster that answer, ready for work."""

    def __init__(self, context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> None:
        self._plan, self._facts, nodes = plan, facts, context.pool.nodes
        self._runtimes = {
            one.name: create_runtime(nodes[one.name], plan, one) for one in plan.members if one.name in nodes
        }

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._runtimes)

    def multiply(self) -> tuple[tuple[DeviceResult, ...], tuple[str, ...]]:
        """Return what every device did, all nodes at once, and the nodes that have no torch."""
        with ThreadPoolExecutor(max(1, len(self._runtimes))) as pool:
            reports = dict(zip(self._runtimes, pool.map(self._multiply, self._runtimes), strict=True))
        missing = tuple(name for name, rows in reports.items() if any("missing" in row for row in rows))
        rows = [(name, row) for name, known in reports.items() if name not in missing for row in known]
        return tuple(_read_device(name, row) for name, row in rows), missing

    def _multiply(self, node: str) -> list[dict[str, Any]]:
        try:
            rows = list(_run_script(self._runtimes[node], "product"))
        except RlboxError as error:
            return [{"said": error.what}]
        return rows or [{"said": "it said nothing"}]

    def reduce(self, ranks: Sequence[_Rank]) -> AllReduceResult:
        """Return how an all-reduce went; the first of `ranks` is where all others meet."""
        names = tuple(dict.fromkeys(rank.node for rank in ranks))
        first = self._plan.member(ranks[0].node)
        host, reports = first.address if first else "", queue.Queue[dict[str, Any] | None]()
        self._start(ranks, 0, host, 0, reports)
        rows, running = [], 1
        while running:
            row = reports.get()
            if row is None:
                running -= 1
            elif "port" in row:
                running += len(ranks) - 1
                for number in range(1, len(ranks)):
                    self._start(ranks, number, host, int(row["port"]), reports)
            else:
                rows.append(row)
        said = next((str(row["said"]) for row in rows if row.get("said")), "")
        done = [row for row in rows if "bytes_s" in row]
        if not said and len(done) < len(ranks):
            said = f"{len(done)} of {len(ranks)} ranks came to the end"
        return AllReduceResult(
            nodes=names,
            ranks=len(ranks),
            bytes_s=min((float(row["bytes_s"]) for row in done), default=0.0),
            wrong=sum(int(row["wrong"]) for row in done),
            said=said,
            speed=self._find_speed(names) if len(names) > 1 else 0,
        )

    def _start(
        self, ranks: Sequence[_Rank], number: int, host: str, port: int, reports: queue.Queue[dict[str, Any] | None]
    ) -> None:
        rank = ranks[number]

        def run() -> None:
            arguments = ("rank", str(number), str(len(ranks)), rank.device, host, str(port))
            try:
                for row in _run_script(self._runtimes[rank.node], *arguments):
                    reports.put(row)
            except RlboxError as error:
                reports.put({"said": f"{rank.node}: {error.what}"})
            reports.put(None)

        threading.Thread(target=run, name=f"rank {number} on {rank.node}", daemon=True).start()

    def _find_speed(self, names: Sequence[str]) -> int:
        """Return the speed of the slower end of a link, 0 where one does not tell."""
        members = [member for member in self._plan.members if member.name in names and member.name in self._facts]
        ends = [self._facts[member.name].find_address(member.address) for member in members]
        return min((end.speed if end else 0 for end in ends), default=0)


def _run_script(runtime: RayRuntime, *arguments: str) -> Iterator[dict[str, Any]]:
    """Yield what the script reports; lines that are none of its own are passed over."""
    return parse_json_lines(run_inside(runtime, "burn_in.py", f"{_LIMIT_S:g}", *arguments))


def _read_device(node: str, row: Mapping[str, Any]) -> DeviceResult:
    keys = ("name", "tflops", "wrong", "said", "free", "total")
    known = {key: row[key] for key in keys if key in row}
    return DeviceResult(node=node, device=str(row.get("device", "")) or "its stack", **known)


def run_burn_in(
    context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]
) -> tuple[BurnInResult, tuple[Finding, ...]]:
    """Return what the nodes of a cluster that answer did, and what of it is not as it should be.

    First every device, all nodes at once; then an all-reduce within each node; then over pairs, one at a time, so that
    no figure is of two: all of a few nodes, of many the head with everybody and each with its neighbours.
    """
    prover = _Prover(context, plan, facts)
    context.app.say(f"proving {', '.join(prover.nodes)}: matrix products, then all-reduce")
    devices, missing = prover.multiply()
    failed = {one.node for one in devices if one.said}
    able = [name for name in prover.nodes if name not in missing and name not in failed]
    ranks = {name: [_Rank(node=name, device=one.device) for one in devices if one.node == name] for name in able}
    groups = [ranks[name] * _CPU_RANKS if ranks[name][0].device == "cpu" else ranks[name] for name in able]
    with ThreadPoolExecutor(max(1, len(able))) as pool:
        within = list(pool.map(prover.reduce, [group for group in groups if len(group) > 1]))
    pairs = [prover.reduce([*ranks[one], *ranks[other]]) for one, other in _list_pairs(able)]
    result = BurnInResult(devices=devices, ways=(*within, *pairs), missing=missing)
    return result, check_burn_in(result, facts)


def _list_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [sorted((one, other), key=names.index) for other in names for one in list_probers(names, other)]
    return list(dict.fromkeys((one, other) for one, other in pairs))


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


# ---- doctor


@dataclass(frozen=True, kw_only=True)
class ExaminationResult:
    """What was found on how many nodes by how many checks; `status` of the cluster, None where there is none.

    `proof` are the figures of the work that its nodes were given, None where they were given none.
    """

    findings: tuple[Finding, ...]
    nodes: int
    checks: int
    status: ClusterStatus | None
    proof: BurnInResult | None = None

    @property
    def has_errors(self) -> bool:
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
        probe = context.probe(paths)
        cluster = context.require_cluster(probe) if work else context.find_cluster(probe)
        status = find_status(context, probe, cluster) if cluster else None
        if probe.facts:
            probe = probe_endpoints(context.pool, probe)
            if cluster is None:
                ports = plan_ports(probe, context.name, context.target.cluster.port, BASE)
                probe = probe_ports(context.pool, probe, ports)
        failures = status.failures if status else ()
        explained = {one.where for one in failures}  # it says more than that a node does not answer
        unreached = [one for one in context.pool.unreached if one.where not in explained]
        findings = (*failures, *(status.listens if status else ()))
        findings = (*findings, *check_nodes(probe, context.needs(paths), unreached))
        proof = None
        if work and cluster:
            proof, failed = run_burn_in(context, cluster.plan, probe.facts)
            findings = (*findings, *failed)
        return ExaminationResult(
            findings=findings, nodes=len(context.specs), checks=len(CHECKS), status=status, proof=proof
        )
