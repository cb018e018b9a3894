"""Examine nodes: every check, and an all-reduce whose sums are known, within each node, then between neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import columns, decimal_size_text
from rlbox.app import App
from rlbox.cluster.checks import check_nodes, format_findings
from rlbox.cluster.context import ClusterContext, open_context, plan_ports, probe_ports_and_connections
from rlbox.cluster.node.facts import NodeFacts
from rlbox.cluster.nodes import ClusterOptions
from rlbox.cluster.plan import BASE, ClusterMember, ClusterPlan
from rlbox.cluster.runtime import run_packaged_script
from rlbox.cluster.status import ClusterStatus, find_status
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _

_SLOW_LINK = 0.3
"""Share of what a link could give: its speed, or what both nodes do within themselves, if that is less."""

_LIMIT_S = 180.0
_CPU_RANKS = 2
_JSON_KEYS = {"wrong_sums": "wrong", "error": "said", "link_mbit_s": "speed"}


@dataclass(frozen=True, kw_only=True)
class AllReduceResult:
    """An all-reduce within one node, or between two: bytes each second, how many sums were wrong, why there was none.

    `link_mbit_s` is 0 where there is no link between them, or it does not tell.
    """

    nodes: tuple[str, ...]
    ranks: int
    bytes_s: float = 0.0
    wrong_sums: int = 0
    error: str = ""
    link_mbit_s: int = 0

    @property
    def is_correct(self) -> bool:
        return not self.error and not self.wrong_sums

    @property
    def bandwidth_text(self) -> str:
        share = f" ({self.bytes_s * 8 / (self.link_mbit_s * 1e6):.0%} of its link)" if self.link_mbit_s else ""
        return f"{decimal_size_text(self.bytes_s)}/s{share}"


@dataclass(frozen=True, kw_only=True)
class BurnInResult:
    """What all nodes of a cluster did; `nodes_without_torch` are those whose stack has no torch."""

    all_reduces: tuple[AllReduceResult, ...] = ()
    nodes_without_torch: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        rows = [{_JSON_KEYS.get(name, name): value for name, value in asdict(one).items()} for one in self.all_reduces]
        return {"ways": rows, "missing": self.nodes_without_torch}

    def text(self) -> str:
        rows = [("all-reduce", "ranks", "did")]
        for way in self.all_reduces:
            rows.append((" - ".join(way.nodes), str(way.ranks), way.error or way.bandwidth_text))
        return "\n".join(columns(rows)) if self.all_reduces else ""


def check_burn_in(result: BurnInResult) -> tuple[Finding, ...]:
    """Return what is not as it should be; a link to a node that is bad by itself is no finding of its own."""
    findings = []
    for node in result.nodes_without_torch:
        title, remedy = _("nothing was proven: the target has no torch"), _("add torch to a [[stack]] of the target")
        findings.append(Finding(id="proof-no-torch", title=title, level="warning", where=node, remedy=remedy))
    alone = {one.nodes[0]: one for one in result.all_reduces if len(one.nodes) == 1}
    for one in result.all_reduces:
        if len(one.nodes) == 1 or all(alone[node].is_correct for node in one.nodes if node in alone):
            findings += _check_all_reduce(one, [alone[node].bytes_s for node in one.nodes if node in alone])
    return tuple(findings)


def _check_all_reduce(result: AllReduceResult, within_nodes: Sequence[float]) -> Iterator[Finding]:
    """Yield what is wrong; `within_nodes` is what its nodes did by themselves, in bytes each second."""
    where = " and ".join(result.nodes)
    look = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")
    possible = min([*within_nodes, *([result.link_mbit_s * 1e6 / 8] if result.link_mbit_s else [])], default=0.0)
    if result.error:
        title = _("an all-reduce failed there")
        yield Finding(id="reduce-failed", title=title, seen=result.error, where=where, remedy=look)
    elif result.wrong_sums:
        title, seen = _("sums of an all-reduce are wrong there"), _("{wrong} of them").format(wrong=result.wrong_sums)
        remedy = _("use another node, and have the GPU, memory and processor of this one checked")
        yield Finding(id="reduce-wrong", title=title, seen=seen, where=where, remedy=remedy)
    elif len(result.nodes) == 2 and result.bytes_s < possible * _SLOW_LINK:
        inner = f", {decimal_size_text(min(within_nodes))}/s within the nodes" if within_nodes else ""
        title = _("the way between nodes is slow")
        yield Finding(id="link-slow", title=title, seen=f"{result.bandwidth_text}{inner}", where=where, remedy=look)


# ---- the work

_Rank = tuple[ClusterMember, str]


def _list_ranks(member: ClusterMember, cpu_ranks: int) -> list[_Rank]:
    return [(member, f"cuda:{number}") for number in range(member.gpus)] or [(member, "cpu")] * cpu_ranks


def run_burn_in(
    context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]
) -> tuple[BurnInResult, tuple[Finding, ...]]:
    """Return what the nodes of a cluster that answer did, and what of it is not as it should be.

    First all nodes at once, each by itself; then pairs of neighbours, one at a time, so that no figure is of two.
    """
    members = [member for member in plan.members if member.name in context.pool.nodes]
    context.app.print_status(f"all-reduce on {', '.join(one.name for one in members)}, then between them")

    def run(members: Sequence[ClusterMember], cpu_ranks: int) -> AllReduceResult | None:
        """Return the result of an all-reduce, None where a stack has no torch."""
        ranks = [rank for member in members for rank in _list_ranks(member, cpu_ranks)]
        rows = _run_ranks(context, plan, ranks)
        if any("missing" in row for row in rows):
            return None
        ends = [facts[member.name].find_address(member.address) for member in members if member.name in facts]
        return AllReduceResult(
            nodes=tuple(member.name for member in members),
            ranks=len(ranks),
            bytes_s=min(float(row.get("bytes_s", 0.0)) for row in rows),
            wrong_sums=sum(int(row.get("wrong", 0)) for row in rows),
            error=next((str(row["error"]) for row in rows if "error" in row), ""),
            link_mbit_s=min((end.speed if end else 0 for end in ends), default=0) if len(members) > 1 else 0,
        )

    with ThreadPoolExecutor(max(1, len(members))) as pool:
        alone = dict(zip(members, pool.map(lambda member: run([member], _CPU_RANKS), members), strict=True))
    able = [member for member, result in alone.items() if result and not result.error]
    pairs = [*itertools.pairwise(able), *([(able[0], able[-1])] if len(able) > 2 else [])]
    results = [*alone.values(), *(run(pair, 1) for pair in pairs)]
    missing = tuple(member.name for member, result in alone.items() if result is None)
    found = BurnInResult(all_reduces=tuple(filter(None, results)), nodes_without_torch=missing)
    return found, check_burn_in(found)


def _run_ranks(context: ClusterContext, plan: ClusterPlan, ranks: Sequence[_Rank]) -> list[dict[str, Any]]:
    meeting = (ranks[0][0].address, str(plan.ports.of("burn-in")))

    def run(number: int) -> dict[str, Any]:
        member, device = ranks[number]
        arguments = (f"{_LIMIT_S:g}", str(number), str(len(ranks)), device, *meeting)
        node = context.pool.nodes[member.name]
        try:
            row = run_packaged_script(node, plan, "burn_in.py", *arguments, timeout_s=2 * _LIMIT_S)
        except RlboxError as error:
            row = {"error": error.what}
        return {**row, "error": f"{member.name}: {row['error']}"} if "error" in row else row

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, range(len(ranks))))


def run_burn_in_or_raise(context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> BurnInResult:
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


# ---- all checks


@dataclass(frozen=True, kw_only=True)
class ExaminationResult:
    """What was found on how many nodes; `status` of the cluster, None where there is none.

    `proof` are the figures of the work that its nodes were given, None where they were given none.
    """

    findings: tuple[Finding, ...]
    nodes: int
    status: ClusterStatus | None
    proof: BurnInResult | None = None


def examine_cluster(
    app: App, options: ClusterOptions, paths: tuple[str, ...] = (), *, work: bool = False
) -> ExaminationResult:
    with open_context(app, options) as context:
        probe = context.probe(paths)
        cluster = context.require_own_cluster(probe) if work else context.find_largest_own_cluster(probe)
        status = find_status(context, probe, cluster) if cluster else None
        if probe.facts and cluster is None:
            ports = plan_ports(probe, context.name, context.target.cluster.port, BASE)
            probe = probe_ports_and_connections(context.pool, probe, ports)
        failures = status.failures if status else ()
        explained = {one.where for one in failures}  # it says more than that a node does not answer
        unreached = [one for one in context.pool.unreached if one.where not in explained]
        findings = (*failures, *check_nodes(context, probe, paths, unreached))
        proof = None
        if work and cluster:
            proof, failed = run_burn_in(context, cluster.plan, probe.facts)
            findings = (*findings, *failed)
        return ExaminationResult(findings=findings, nodes=len(context.specs), status=status, proof=proof)
