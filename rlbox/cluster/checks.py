"""Check nodes: before anything starts, and by an all-reduce whose sums are known, within each and over all of them."""

from __future__ import annotations

import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

from rlbox.amounts import GIB, align_translated, decimal_size_text, duration_text, gpu_gib_or_mib_text
from rlbox.app import App
from rlbox.cluster.node.facts import Gpu, NodeFacts
from rlbox.cluster.nodes import ClusterContext, ClusterProbe
from rlbox.cluster.plan import NODE_LABEL, STRIDE, ClusterMember, ClusterPlan, plan_of_labels
from rlbox.cluster.runtime import ask_in_stack
from rlbox.config.toml_files import load_toml
from rlbox.errors import MachineError
from rlbox.findings import LEVELS, Finding, Level, join_and_count_rest
from rlbox.i18n import _, join

_OLDEST_ENGINE = (20, 10)
_SKEW_S, _LARGE_SKEW_S = 1.0, 60.0
_ALMOST_ALL = 0.97
"""Of a machine's memory, or of a GPU's: kernel and driver keep some to themselves."""
_IDLE = 0.05
_SLOW_LINK = 0.3
"""Share of what a network could give: its speed, or what the nodes do within themselves, if that is less."""

_CPU_RANKS = 2


@functools.cache
def load_finding_texts() -> Mapping[str, Mapping[str, str]]:
    return load_toml(Path(__file__).with_name("findings.toml"))


def make_finding(text_id: str, where: str, seen: str = "", level: str = "", **values: str | float) -> Finding:
    """Return a finding with the texts of `text_id`, with `values` filled in; `seen` and `level` replace its own."""
    row = load_finding_texts()[text_id]
    texts = [_(row[key]) if key in row else "" for key in ("title", "seen", "remedy")]
    title, text, remedy = (one.format(**values) for one in texts)
    level = cast("Level", level or row.get("level", "error"))
    return Finding(id=row.get("id", text_id), title=title, level=level, seen=seen or text, where=where, remedy=remedy)


def _check_engine(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    engine = facts.engine
    if engine.state != "ok":
        yield make_finding(
            f"engine-{engine.state}", name, engine.error, user=facts.machine.user, target=context.target.name
        )
        return
    parts = engine.version.partition("+")[0].split(".")[:2]
    if tuple(int(part) for part in parts if part.isdigit()) < _OLDEST_ENGINE:
        yield make_finding("engine-old", name, version=engine.version)
    if any("rootless" in option for option in engine.security):
        yield make_finding("engine-rootless", name, facts.machine.engine_socket)
    if context.target.hardware.gpus and facts.gpus and "nvidia" not in engine.runtimes and not engine.cdi:
        yield make_finding("gpu-runtime", name, runtimes=", ".join(engine.runtimes))


def _check_installation(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    installation, target, disk = facts.installation, context.target.name, facts.disk.path
    apply = f"rlbox apply {target} --data {disk}"
    if installation is None or not installation.is_complete:
        seen = installation.directory if installation else ""
        yield make_finding("place-missing", name, seen, target=target, apply=apply)
        return
    lock, own_lock = installation.lock_checksum[:12], context.image.lock_checksum[:12]
    if lock != own_lock:
        yield make_finding("place-differs", name, lock=lock, lock2=own_lock, target=target, apply=apply)
    if installation.data_disk != disk:
        yield make_finding("place-disk", name, installation.data_disk, target=target, disk=disk, apply=apply)


def _check_disk(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    disk, where = facts.disk, f"{name}: {facts.disk.path}"
    if not disk.there:
        yield make_finding("disk-missing", where, disk.error)
        return
    if not disk.writable:
        yield make_finding("disk-denied", where, user=facts.machine.user, path=disk.path)
    if disk.free < (need := context.target.disk.need_gib * GIB):
        yield make_finding("disk-full", where, free=decimal_size_text(disk.free), size=decimal_size_text(need))


def _check_machine(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    need, memory = context.target.hardware.memory_gib * GIB, facts.machine.memory
    if memory < need * _ALMOST_ALL:
        yield make_finding("memory-small", name, memory=decimal_size_text(memory), size=decimal_size_text(need))


def _check_gpus(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    hardware, gpus = context.target.hardware, facts.gpus
    if not hardware.gpus:
        return
    if len(gpus) < hardware.gpus:
        said = f": {facts.gpu_error}" if facts.gpu_error else ""
        yield make_finding("gpus-few", name, count=len(gpus), gpus=hardware.gpus, said=said)
    small = [gpu for gpu in gpus if gpu.memory_bytes < hardware.gpu_memory_gib * GIB * _ALMOST_ALL]
    if small:
        memory, need = gpu_gib_or_mib_text(small[0].memory_bytes), hardware.gpu_memory_gib
        yield make_finding("gpu-small", name, numbers=_numbers(small), memory=memory, gpu_memory_gib=need)
    if ill := [gpu for gpu in gpus if gpu.uncorrected_errors]:
        yield make_finding("gpu-ill", name, f"GPU {_numbers(ill)}")
    if taken := [gpu for gpu in gpus if gpu.used_bytes > gpu.memory_bytes * _IDLE]:
        users = join_and_count_rest([user for gpu in taken for user in gpu.users])
        seen = f"GPU {_numbers(taken)}, {gpu_gib_or_mib_text(sum(gpu.used_bytes for gpu in taken))}"
        yield make_finding("gpus-taken", name, join(": ", filter(None, (seen, users))))
    for one in facts.clusters:  # at work or not: each cluster's GPUs are the first of its node
        plan = plan_of_labels(one.labels) if one.has_not_ended else None
        member = plan.members_by_name.get(one.labels.get(NODE_LABEL, "")) if plan else None
        if plan and member and member.gpus and (plan.name, member.uid) != (context.name, facts.machine.uid):
            texts = {"plan": plan.name, "maker": plan.maker, "target": plan.target}
            yield make_finding("gpus-given", name, gpus=member.gpus, count=len(gpus), **texts)


def _numbers(gpus: Sequence[Gpu]) -> str:
    return join_and_count_rest([str(gpu.number) for gpu in gpus], max_shown=8)


def _check_clocks(probe: ClusterProbe) -> Iterator[Finding]:
    """Yield clocks that differ: Ray bears it, tokens and merged logs do not."""
    offsets = probe.clock_offsets_s
    for name, offset in offsets.items():
        skew = offset - statistics.median_low(list(offsets.values()))
        if abs(skew) >= _SKEW_S:
            level = "error" if abs(skew) >= _LARGE_SKEW_S else "warning"
            text = _("{duration} ahead of them") if skew > 0 else _("{duration} behind them")
            yield make_finding("clock-skew", name, text.format(duration=duration_text(abs(skew))), level)


def _check_ports(probe: ClusterProbe) -> Iterator[Finding]:
    for name in probe.facts.keys() - probe.addresses.keys():
        yield make_finding("no-address", name)
    for name, taken in probe.taken_ports.items():
        if taken:
            text = _("{port} by {who}")
            seen = join_and_count_rest([text.format(port=port, who=who) for port, who in sorted(taken.items())])
            yield make_finding("ports-taken", name, seen)
    closed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, node, address, port, error in probe.connection_attempts:
        if error:
            closed[source, node].append(f"{address}:{port} {error}")
    if probe.ports is None:
        return
    ports, (first, last) = probe.ports, probe.ports.worker_range
    for (source, node), seen_ports in closed.items():
        # where NCCL and gloo meet, the kernel chooses the port
        span = f"{ports.base}-{ports.base + STRIDE - 1}, {first}-{last}, net.ipv4.ip_local_port_range"
        yield make_finding("ports-closed", node, join_and_count_rest(seen_ports, max_shown=3), source=source, span=span)


def _check_mtu(probe: ClusterProbe) -> Iterator[Finding]:
    """Yield interfaces whose packets are of another size than the others': large ones are lost between them."""
    sizes = Counter(one.mtu for one in probe.addresses.values() if one.mtu)
    most = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for name, one in probe.addresses.items():
        if one.mtu and one.mtu != most:
            yield make_finding("mtu-differs", name, interface=one.interface, mtu=one.mtu, most=most)


def check_nodes(
    context: ClusterContext, probe: ClusterProbe, paths: Sequence[str] = (), unreached: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Return all that is wrong with the nodes, on each of which `paths` are to be, errors first, then by node."""
    findings = [*unreached, *_check_clocks(probe), *_check_ports(probe), *_check_mtu(probe)]
    for name, facts in probe.facts.items():
        is_inplace = name in probe.inplace_nodes
        for check in (_check_installation if is_inplace else _check_engine, _check_gpus, _check_disk, _check_machine):
            findings += check(name, facts, context)
        for path in set(paths) - set(facts.existing_paths):
            if facts.disk.there or not path.startswith(f"{facts.disk.path}/"):  # else the disk is reported
                findings.append(make_finding("path-missing", f"{name}: {path}"))
    return tuple(sorted(findings, key=lambda one: (LEVELS.index(one.level), one.where)))


def format_findings(findings: Sequence[Finding]) -> str:
    """Return findings as a table; nodes that have the very same are one row."""
    nodes: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for one in findings:
        nodes[one.level, one.title, one.seen, one.remedy].append(one.where)
    rows: list[tuple[str, ...]] = [(_("node"), _("what"), _("next"))]
    for (level, title, seen, remedy), where in nodes.items():
        mark = (_(level),) if level != "error" else ()
        rows.append((join_and_count_rest(where), join(": ", filter(None, (*mark, title, seen))), remedy))
    return "\n".join(align_translated(rows)) if len(rows) > 1 else ""


def print_findings_raise_if_errors(app: App, findings: Sequence[Finding], error_text: str) -> None:
    if table := format_findings(findings):
        app.print_status(table)
    errors = [one for one in findings if one.level == "error"]
    if errors:
        nodes = sorted({one.where.partition(":")[0] for one in errors})
        raise MachineError(error_text.format(count=len(errors)), where=", ".join(nodes), next_step=errors[0].remedy)


class AllReduceResult(NamedTuple):
    """An all-reduce within one node, or over several; `link_mbit_s` is 0 within one, or where no driver tells.

    `possible_bytes_s` is what the slowest node or link of it can do, 0 where not known.
    """

    nodes: tuple[str, ...]
    ranks: int
    bytes_s: float = 0.0
    wrong_sums: int = 0
    error: str = ""
    link_mbit_s: int = 0
    possible_bytes_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        row = {"nodes": self.nodes, "ranks": self.ranks, "bytes_s": self.bytes_s}
        return {**row, "wrong": self.wrong_sums, "said": self.error, "speed": self.link_mbit_s}

    @property
    def bandwidth_text(self) -> str:
        text = _("{rate}/s ({share:.0%} of its link)") if self.link_mbit_s else _("{rate}/s")
        return text.format(rate=decimal_size_text(self.bytes_s), share=self.bytes_s * 8 / (self.link_mbit_s * 1e6 or 1))

    def find_faults(self) -> list[Finding]:
        where = join("", (self.nodes[0], *(_(" and {node}").format(node=name) for name in self.nodes[1:])))
        if self.error:
            return [make_finding("reduce-failed", where, self.error)]
        if self.wrong_sums:
            return [make_finding("reduce-wrong", where, wrong=self.wrong_sums)]
        is_slow = self.bytes_s < self.possible_bytes_s * _SLOW_LINK
        return [make_finding("link-slow", where, self.bandwidth_text)] if is_slow else []


class BurnInResult(NamedTuple):
    all_reduces: Sequence[AllReduceResult]

    @property
    def findings(self) -> list[Finding]:
        return [fault for one in self.all_reduces for fault in one.find_faults()]

    def as_json(self) -> dict[str, Any]:
        return {"ways": [one.as_json() for one in self.all_reduces], "missing": []}  # readers of before ask for it

    def all_reduce_table(self) -> str:
        rows = [(" - ".join(one.nodes), str(one.ranks), one.error or one.bandwidth_text) for one in self.all_reduces]
        return "\n".join(align_translated([("all-reduce", _("ranks"), _("did")), *rows]))


def run_all_reduce_checks(context: ClusterContext, plan: ClusterPlan, probe: ClusterProbe) -> BurnInResult:
    """Run an all-reduce within each node that answers, at once, then one over all nodes that are sound."""
    members = [member for member in plan.members if member.name in context.pool.nodes]
    names = ", ".join(one.name for one in members)
    context.app.print_status(_("all-reduce on {nodes}, then over all of them").format(nodes=names))
    with ThreadPoolExecutor(max(1, len(members))) as pool:
        results = list(pool.map(lambda member: _all_reduce(context, plan, [member], _CPU_RANKS), members))
    sound = [member for member, one in zip(members, results, strict=True) if not one.find_faults()]
    if len(sound) > 1:
        link_mbit_s = min(probe.addresses[member.name].speed for member in sound)
        possible = [one.bytes_s for one in results if not one.error] + [link_mbit_s * 1e6 / 8] * bool(link_mbit_s)
        together = _all_reduce(context, plan, sound, 1)
        results.append(together._replace(link_mbit_s=link_mbit_s, possible_bytes_s=min(possible)))
    return BurnInResult(results)


def _all_reduce(
    context: ClusterContext, plan: ClusterPlan, members: Sequence[ClusterMember], cpu_ranks: int
) -> AllReduceResult:
    """Run a rank for each GPU of the members, `cpu_ranks` on one without."""
    ranks = [
        (member.name, device)
        for member in members
        for device in [f"cuda:{number}" for number in range(member.gpus)] or ["cpu"] * cpu_ranks
    ]
    world, host, port = len(ranks), members[0].address, plan.ports.of("burn-in")

    def run(rank: int) -> dict[str, Any]:
        name, device = ranks[rank]
        node = context.pool.nodes[name]
        try:
            return ask_in_stack(node, plan, "reduce", rank=rank, world=world, device=device, host=host, port=port)
        except MachineError as error:
            return {"bytes_s": 0.0, "wrong": 0, "error": f"{name}: {error.what}"}

    with ThreadPoolExecutor(world) as pool:
        rows = list(pool.map(run, range(world)))
    return AllReduceResult(
        nodes=tuple(member.name for member in members),
        ranks=world,
        bytes_s=min(row["bytes_s"] for row in rows),
        wrong_sums=sum(row["wrong"] for row in rows),
        error=next((row["error"] for row in rows if "error" in row), ""),
    )
