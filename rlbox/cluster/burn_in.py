"""All-reduce over the devices of a cluster, whose sums are known: within each node, then between neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rlbox.amounts import columns, decimal_size_text
from rlbox.cluster.checks import format_findings
from rlbox.cluster.context import ClusterContext
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.plan import ClusterMember, ClusterPlan
from rlbox.cluster.runtime import run_packaged_script, select_runtime
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.json_files import parse_json_lines

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
    bad = {way.nodes[0] for way in result.all_reduces if len(way.nodes) == 1 and not way.is_correct}
    for way in result.all_reduces:
        if len(way.nodes) == 1 or bad.isdisjoint(way.nodes):
            findings += _check_way(way, result)
    return tuple(findings)


def _check_way(way: AllReduceResult, result: BurnInResult) -> Iterator[Finding]:
    where = " and ".join(way.nodes)
    look = _("look at cable, switch and MTU between them; NCCL_DEBUG=INFO says which way is taken")
    within = [
        one.bytes_s
        for one in result.all_reduces
        if len(one.nodes) == 1 and one.nodes[0] in way.nodes and one.is_correct
    ]
    possible = min([*within, *([way.link_mbit_s * 1e6 / 8] if way.link_mbit_s else [])], default=0.0)
    if way.error:
        title = _("an all-reduce failed there")
        yield Finding(id="reduce-failed", title=title, seen=way.error, where=where, remedy=look)
    elif way.wrong_sums:
        title, seen = _("sums of an all-reduce are wrong there"), _("{wrong} of them").format(wrong=way.wrong_sums)
        remedy = _("use another node, and have the GPU, memory and processor of this one checked")
        yield Finding(id="reduce-wrong", title=title, seen=seen, where=where, remedy=remedy)
    elif len(way.nodes) == 2 and way.bytes_s < possible * _SLOW_LINK:
        inner = f", {decimal_size_text(min(within))}/s within the nodes" if within else ""
        title = _("the way between nodes is slow")
        yield Finding(id="link-slow", title=title, seen=f"{way.bandwidth_text}{inner}", where=where, remedy=look)


# ---- the work


class _Rank(NamedTuple):
    member: ClusterMember
    device: str


def _list_ranks(member: ClusterMember) -> list[_Rank]:
    return [_Rank(member, f"cuda:{number}") for number in range(member.gpus)] or [_Rank(member, "cpu")]


def run_burn_in(
    context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]
) -> tuple[BurnInResult, tuple[Finding, ...]]:
    """Return what the nodes of a cluster that answer did, and what of it is not as it should be.

    First all nodes at once, each by itself; then pairs of neighbours, one at a time, so that no figure is of two.
    """
    members = [member for member in plan.members if member.name in context.pool.nodes]
    context.app.print_status(f"all-reduce on {', '.join(one.name for one in members)}, then between them")
    groups = [_list_ranks(member) * (1 if member.gpus else _CPU_RANKS) for member in members]
    with ThreadPoolExecutor(max(1, len(groups))) as pool:
        reports = list(pool.map(lambda group: _run_group(context, plan, group), groups))
    missing = [group[0].member for group, rows in zip(groups, reports, strict=True) if "missing" in rows[0]]
    ways = [
        _read_all_reduce(group, rows, facts)
        for group, rows in zip(groups, reports, strict=True)
        if group[0].member not in missing
    ]
    able = [one for one in members if one.name in {way.nodes[0] for way in ways if not way.error}]
    for pair in [*itertools.pairwise(able), *([(able[0], able[-1])] if len(able) > 2 else [])]:
        group = [rank for member in pair for rank in _list_ranks(member)]
        ways.append(_read_all_reduce(group, _run_group(context, plan, group), facts))
    result = BurnInResult(all_reduces=tuple(ways), nodes_without_torch=tuple(one.name for one in missing))
    return result, check_burn_in(result)


def _run_group(context: ClusterContext, plan: ClusterPlan, ranks: Sequence[_Rank]) -> list[dict[str, Any]]:
    """Return what each rank of an all-reduce reports; all meet at the first."""
    meeting = (ranks[0].member.address, str(plan.ports.of("burn-in")))

    def run(number: int) -> dict[str, Any]:
        member, device = ranks[number]
        runtime = select_runtime(context.pool.nodes[member.name], plan, member)
        arguments = (f"{_LIMIT_S:g}", str(number), str(len(ranks)), device, *meeting)
        try:
            rows = list(parse_json_lines(run_packaged_script(runtime, "burn_in.py", *arguments)))
        except RlboxError as error:
            return {"said": f"{member.name}: {error.what}"}
        return rows[-1] if rows else {"said": f"{member.name}: it said nothing"}

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, range(len(ranks))))


def _read_all_reduce(
    ranks: Sequence[_Rank], rows: Sequence[Mapping[str, Any]], facts: Mapping[str, NodeFacts]
) -> AllReduceResult:
    members = {rank.member.name: rank.member for rank in ranks}
    ends = [facts[name].find_address(member.address) for name, member in members.items() if name in facts]
    return AllReduceResult(
        nodes=tuple(members),
        ranks=len(ranks),
        bytes_s=min(float(row.get("bytes_s", 0.0)) for row in rows),
        wrong_sums=sum(int(row.get("wrong", 0)) for row in rows),
        error=next((str(row["said"]) for row in rows if "said" in row), ""),
        link_mbit_s=min((end.speed if end else 0 for end in ends), default=0) if len(members) > 1 else 0,
    )


def run_burn_in_or_raise(context: ClusterContext, plan: ClusterPlan, facts: Mapping[str, NodeFacts]) -> BurnInResult:
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
