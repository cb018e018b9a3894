"""Examine nodes: every check, and an all-reduce whose sums are known, within each node, then over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from rlbox.amounts import align_rows, decimal_size_text
from rlbox.app import App
from rlbox.cluster.checks import check_nodes, format_findings
from rlbox.cluster.context import ClusterContext, open_context, plan_ports, probe_ports_and_connections
from rlbox.cluster.node.facts import NodeFacts
from rlbox.cluster.plan import BASE, ClusterMember, ClusterOptions, ClusterPlan
from rlbox.cluster.runtime import run_packaged_script
from rlbox.cluster.status import ClusterStatus, find_status
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _

_SLOW_LINK = 0.3
"""Share of what a network could give: its speed, or what the nodes do within themselves, if that is less."""

_LIMIT_S = 180.0
_CPU_RANKS = 2


class AllReduceResult(NamedTuple):
    """An all-reduce within one node, or over several; `link_mbit_s` is 0 within one, or where no driver tells."""

    nodes: tuple[str, ...]
    ranks: int
    bytes_s: float = 0.0
    wrong_sums: int = 0
    error: str = ""
    link_mbit_s: int = 0

    def as_json(self) -> dict[str, Any]:
        row = self._asdict()
        return {"wrong": row.pop("wrong_sums"), "said": row.pop("error"), "speed": row.pop("link_mbit_s"), **row}

    @property
    def bandwidth_text(self) -> str:
        share = f" ({self.bytes_s * 8 / (self.link_mbit_s * 1e6):.0%} of its link)" if self.link_mbit_s else ""
        return f"{decimal_size_text(self.bytes_s)}/s{share}"


class BurnInResult(NamedTuple):
    all_reduces: Sequence[AllReduceResult]
    nodes_without_torch: Sequence[str]
    findings: Sequence[Finding]

    def as_json(self) -> dict[str, Any]:
        return {"ways": [one.as_json() for one in self.all_reduces], "missing": list(self.nodes_without_torch)}

    def all_reduce_table(self) -> str:
        rows = [(" - ".join(one.nodes), str(one.ranks), one.error or one.bandwidth_text) for one in self.all_reduces]
        return "\n".join(align_rows([("all-reduce", "ranks", "did"), *rows])) if rows else ""


def check_all_reduce(one: AllReduceResult, possible_bytes_s: float = 0.0) -> list[Finding]:
    """Return what is wrong; `possible_bytes_s` is what the slowest node or link of it can do, 0 where not known."""
    where = " and ".join(one.nodes)
    look = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")
    if one.error:
        title = _("an all-reduce failed there")
        return [Finding(id="reduce-failed", title=title, seen=one.error, where=where, remedy=look)]
    if one.wrong_sums:
        title, seen = _("sums of an all-reduce are wrong there"), _("{wrong} of them").format(wrong=one.wrong_sums)
        remedy = _("use another node, and have the GPU, memory and processor of this one checked")
        return [Finding(id="reduce-wrong", title=title, seen=seen, where=where, remedy=remedy)]
    if one.bytes_s < possible_bytes_s * _SLOW_LINK:
        title, seen = _("the way between nodes is slow"), one.bandwidth_text
        return [Finding(id="link-slow", title=title, seen=seen, where=where, remedy=look)]
    return []


def run_burn_in(context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> BurnInResult:
    """Run an all-reduce within each node that answers, at once, then one over all nodes that are sound."""
    members = [member for member in plan.members if member.name in context.pool.nodes]
    context.app.print_status(f"all-reduce on {', '.join(one.name for one in members)}, then over all of them")
    with ThreadPoolExecutor(max(1, len(members))) as pool:
        rows = pool.map(lambda member: _all_reduce(context, plan, [member], _CPU_RANKS), members)
        by_member = dict(zip(members, rows, strict=True))
    results = [one for one in by_member.values() if one]
    missing = [member.name for member, one in by_member.items() if one is None]
    findings = [finding for one in results for finding in check_all_reduce(one)]
    sound = [member for member, one in by_member.items() if one and not check_all_reduce(one)]
    if len(sound) > 1 and (together := _all_reduce(context, plan, sound, 1)):
        ends = [facts[member.name].find_address(member.address) for member in sound if member.name in facts]
        together = together._replace(link_mbit_s=min((end.speed if end else 0 for end in ends), default=0))
        link = [together.link_mbit_s * 1e6 / 8] if together.link_mbit_s else []
        findings += check_all_reduce(together, min([one.bytes_s for one in results if not one.error] + link))
        results.append(together)
    for node in missing:
        title, remedy = _("nothing was proven: the target has no torch"), _("add torch to a [[stack]] of the target")
        findings.append(Finding(id="proof-no-torch", title=title, level="warning", where=node, remedy=remedy))
    return BurnInResult(results, missing, findings)


def _all_reduce(
    context: ClusterContext, plan: ClusterPlan, members: Sequence[ClusterMember], cpu_ranks: int
) -> AllReduceResult | None:
    """Run a rank for each GPU of the members, `cpu_ranks` on one without; return None where a stack has no torch."""
    ranks = [
        (member.name, device)
        for member in members
        for device in [f"cuda:{number}" for number in range(member.gpus)] or ["cpu"] * cpu_ranks
    ]
    meeting = (members[0].address, str(plan.ports.of("burn-in")))

    def run(number: int) -> dict[str, Any]:
        name, device = ranks[number]
        arguments = (f"{_LIMIT_S:g}", str(number), str(len(ranks)), device, *meeting)
        try:
            row = run_packaged_script(context.pool.nodes[name], plan, "burn_in.py", *arguments, timeout_s=2 * _LIMIT_S)
        except RlboxError as error:
            row = {"error": error.what}
        return {**row, "error": f"{name}: {row['error']}"} if "error" in row else row

    with ThreadPoolExecutor(len(ranks)) as pool:
        rows = list(pool.map(run, range(len(ranks))))
    if any("missing" in row for row in rows):
        return None
    return AllReduceResult(
        nodes=tuple(member.name for member in members),
        ranks=len(ranks),
        bytes_s=min(float(row.get("bytes_s", 0.0)) for row in rows),
        wrong_sums=sum(int(row.get("wrong", 0)) for row in rows),
        error=next((str(row["error"]) for row in rows if "error" in row), ""),
    )


def run_burn_in_or_raise(context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> BurnInResult:
    result = run_burn_in(context, plan, facts)
    if errors := [one for one in result.findings if one.level == "error"]:
        raise NodeError(
            _("cluster {plan} does not stand the proof\n{problems_text}").format(
                plan=plan.name, problems_text=format_findings(result.findings)
            ),
            where=", ".join(one.where for one in errors),
            next_step=errors[0].remedy,
        )
    return result


class ExaminationResult(NamedTuple):
    """`status` is None where there is no cluster, `proof` where its nodes were given no work."""

    findings: Sequence[Finding]
    nodes: int
    status: ClusterStatus | None
    proof: BurnInResult | None


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
        proof = run_burn_in(context, cluster.plan, probe.facts) if work and cluster else None
        findings = (*failures, *check_nodes(context, probe, paths, unreached), *(proof.findings if proof else ()))
        return ExaminationResult(findings, len(context.specs), status, proof)
