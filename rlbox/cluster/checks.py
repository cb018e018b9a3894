"""Check the nodes before anything starts: engine, disk, memory, clock, GPUs, network, other clusters."""

from __future__ import annotations

import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rlbox.amounts import GIB, align_rows, decimal_size_text, duration_text, gpu_gib_or_mib_text
from rlbox.app import App
from rlbox.cluster.context import ClusterContext, ClusterProbe
from rlbox.cluster.node.facts import Gpu, Installation, NodeFacts
from rlbox.cluster.plan import NODE_LABEL, STRIDE, plan_of_labels
from rlbox.errors import NodeError
from rlbox.findings import LEVELS, Finding, Level, join_and_count_rest
from rlbox.i18n import _, translate

_OLDEST_ENGINE = (20, 10)
_SKEW_S, _LARGE_SKEW_S = 1.0, 60.0
_ALMOST_ALL = 0.97
"""Of a machine's memory, or of a GPU's: kernel and driver keep some to themselves."""
_IDLE = 0.05

# title and next step of each finding
_TEXTS = {
    "engine-denied": (
        _("user {user} may not speak to its Docker engine"),
        _("sudo usermod -aG docker {user} there, then log in again"),
    ),
    "engine-silent": (_("its Docker engine does not answer"), _("restart it there: systemctl restart docker")),
    "engine-absent": (
        _("it has no Docker engine"),
        _(
            "`rlbox engine up` there, or its distribution's package; or `rlbox apply {target}` there, and Ray runs "
            "without one"
        ),
    ),
    "engine-old": (_("its Docker engine is too old"), _("install a newer one there")),
    "engine-rootless": (
        _("its Docker engine is rootless: containers of it have no network that other nodes reach"),
        _("use the machine's own engine there"),
    ),
    "place-missing": (
        _("target {target} was not, or not wholly, brought to it, and Ray is to run there without an engine"),
        _("{apply}, there"),
    ),
    "place-differs": (
        _("it is at another lock of target {target} than this machine has"),
        _("bring this project there, then {apply}"),
    ),
    "place-disk": (
        _("target {target} was brought to it for another data disk"),
        _("--data {disk}, or {apply} there"),
    ),
    "disk-missing": (_("its data disk is not there"), _("make or mount it there, or name another with --data")),
    "disk-denied": (_("user {user} may not write to its data disk"), _("chown {user} {path} there")),
    "disk-full": (_("its data disk has too little free space"), _("free space there, or name another with --data")),
    "memory-small": (
        _("it has less memory than the target says"),
        _("take another node, or correct hardware.memory_gib"),
    ),
    "clock-skew": (_("its clock differs from the other nodes"), _("set it there: timedatectl set-ntp true")),
    "path-missing": (_("an input of the job is missing"), _("copy it there, from a node that has it")),
    "no-address": (
        _("it has no address of IPv4 by which other nodes could reach it"),
        _("name its address: cluster.nodes with address"),
    ),
    "ports-taken": (
        _("ports of the cluster are taken there"),
        _("--port N chooses the first of 20 other ports; or stop the processes on these ports if they are yours"),
    ),
    "ports-closed": (
        _("{source} does not reach ports of it"),
        _("let {source} through in its firewall: {span}; or name another address of it: cluster.nodes with address"),
    ),
    "mtu-differs": (
        _("the packet size of its interface differs from the other nodes"),
        _("ip link set {interface} mtu {most} there"),
    ),
    "gpus-few": (
        _("it has fewer GPUs than the target says"),
        _("see dmesg and nvidia-smi there; a GPU that fell off the bus comes back by a restart of the machine"),
    ),
    "gpu-runtime": (
        _("its Docker engine gives containers no GPU"),
        _("install nvidia-container-toolkit there, then: nvidia-ctk runtime configure"),
    ),
    "gpu-small": (
        _("its GPUs have less memory than the target says"),
        _("take another node, or correct hardware.gpu_memory_gib"),
    ),
    "gpu-ill": (
        _("memory of its GPUs has errors that were not corrected"),
        _("reset or replace the GPU before a long run"),
    ),
    "gpus-taken": (_("its GPUs are in use"), _("ask their owner, wait, or take another node")),
    "gpus-given": (
        _("another cluster has its GPUs"),
        _("wait, take another node, or end that one if it is yours: rlbox cluster down {target} --name {plan}"),
    ),
}


def _create_finding(level: Level, id_: str, where: str, seen: str, **values: str) -> Finding:
    title, remedy = (text.format(**values) for text in _TEXTS[id_])
    return Finding(id=id_, title=title, level=level, seen=seen, where=where, remedy=remedy)


_error = functools.partial(_create_finding, "error")
_warning = functools.partial(_create_finding, "warning")


def _check_engine(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    engine = facts.engine
    if engine.state != "ok":
        yield _error(f"engine-{engine.state}", name, engine.error, user=facts.machine.user, target=context.target.name)
        return
    parts = engine.version.partition("+")[0].split(".")[:2]
    if tuple(int(part) for part in parts if part.isdigit()) < _OLDEST_ENGINE:
        yield _error("engine-old", name, _("{version}, 20.10 or newer is needed").format(version=engine.version))
    if any("rootless" in option for option in engine.security):
        yield _error("engine-rootless", name, facts.machine.engine_socket)
    if context.target.hardware.gpus and facts.gpu.gpus and "nvidia" not in engine.runtimes and not engine.cdi:
        yield _warning("gpu-runtime", name, _("runtimes: {runtimes}").format(runtimes=", ".join(engine.runtimes)))


def check_installation(
    node: str, installation: Installation | None, data_disk: str, context: ClusterContext
) -> Iterator[Finding]:
    apply = f"rlbox apply {context.target.name} --data {data_disk}"
    if installation is None or not installation.is_complete:
        seen = installation.directory if installation else ""
        yield _error("place-missing", node, seen, target=context.target.name, apply=apply)
        return
    if installation.lock_checksum != context.image.lock_checksum:
        seen = _("{lock}, here {lock2}").format(
            lock=installation.lock_checksum[:12], lock2=context.image.lock_checksum[:12]
        )
        yield _error("place-differs", node, seen, target=context.target.name, apply=apply)
    disk = installation.data_disk
    if disk != data_disk:
        yield _error("place-disk", node, disk, target=context.target.name, disk=disk, apply=apply)


def _check_disk(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    disk, where = facts.disk, f"{name}: {facts.disk.path}"
    if not disk.there:
        yield _error("disk-missing", where, disk.error)
        return
    if not disk.writable:
        mode = _("mode {mode:o}, owner {uid}").format(mode=disk.mode, uid=disk.uid)
        yield _error("disk-denied", where, mode, user=facts.machine.user, path=disk.path)
    free, need = decimal_size_text(disk.free), decimal_size_text(context.target.disk.need_gib * GIB)
    if disk.free < context.target.disk.need_gib * GIB:
        yield _error("disk-full", where, _("{free} free, {size} needed").format(free=free, size=need))


def _check_machine(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    need, memory = context.target.hardware.memory_gib * GIB, facts.machine.memory
    if memory < need * _ALMOST_ALL:
        seen = _("{memory}, {size} needed").format(memory=decimal_size_text(memory), size=decimal_size_text(need))
        yield _error("memory-small", name, seen)


def _check_gpus(name: str, facts: NodeFacts, context: ClusterContext) -> Iterator[Finding]:
    hardware, gpus = context.target.hardware, facts.gpu.gpus
    if not hardware.gpus:
        return
    if len(gpus) < hardware.gpus:
        said = f": {facts.gpu.error}" if facts.gpu.error else ""
        seen = _("{count} of {gpus}{said}").format(count=len(gpus), gpus=hardware.gpus, said=said)
        yield _error("gpus-few", name, seen)
    small = [gpu for gpu in gpus if gpu.memory_bytes < hardware.gpu_memory_gib * GIB * _ALMOST_ALL]
    if small:
        seen = _("GPU {numbers}: {memory}, {gpu_memory_gib:g} needed").format(
            numbers=_numbers(small),
            memory=gpu_gib_or_mib_text(small[0].memory_bytes),
            gpu_memory_gib=hardware.gpu_memory_gib,
        )
        yield _error("gpu-small", name, seen)
    ill = [gpu for gpu in gpus if gpu.uncorrected_errors]
    if ill:
        yield _error("gpu-ill", name, f"GPU {_numbers(ill)}")
    taken = [gpu for gpu in gpus if gpu.used_bytes > gpu.memory_bytes * _IDLE]
    if taken:
        users = join_and_count_rest([user for gpu in taken for user in gpu.users])
        seen = f"GPU {_numbers(taken)}, {gpu_gib_or_mib_text(sum(gpu.used_bytes for gpu in taken))}"
        yield _error("gpus-taken", name, f"{seen}: {users}" if users else seen)
    for one in facts.clusters:  # at work or not: each cluster's GPUs are the first of its node
        plan = plan_of_labels(one.labels) if one.has_not_ended else None
        member = plan.member(one.labels.get(NODE_LABEL, "")) if plan else None
        if plan and member and member.gpus and (plan.name, member.uid) != (context.name, facts.machine.uid):
            seen = _("{plan} of {maker} has {gpus} of {count}").format(
                plan=plan.name, maker=plan.maker, gpus=member.gpus, count=len(gpus)
            )
            yield _error("gpus-given", name, seen, target=plan.target, plan=plan.name)


def _numbers(gpus: Sequence[Gpu]) -> str:
    return join_and_count_rest([str(gpu.number) for gpu in gpus], max_shown=8)


# ---- between nodes


def _check_clocks(probe: ClusterProbe) -> Iterator[Finding]:
    """Yield clocks that differ: Ray bears it, tokens and merged logs do not."""
    offsets = probe.clock_offsets_s
    for name, offset in offsets.items():
        skew = offset - statistics.median_low(list(offsets.values()))
        if abs(skew) >= _SKEW_S:
            create = _error if abs(skew) >= _LARGE_SKEW_S else _warning
            way = _("ahead of") if skew > 0 else "behind"
            seen = _("{duration} {way} them").format(duration=duration_text(abs(skew)), way=way)
            yield create("clock-skew", name, seen)


def _check_ports(probe: ClusterProbe) -> Iterator[Finding]:
    for name in probe.facts.keys() - probe.addresses.keys():
        yield _error("no-address", name, "")
    for name, taken in probe.taken_ports.items():
        if taken:
            seen = join_and_count_rest([f"{port} by {holder}" for port, holder in sorted(taken.items())])
            yield _error("ports-taken", name, seen)
    closed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, target, error in probe.connection_attempts:
        if error:
            closed[source, target.node].append(f"{target.address}:{target.port} {error}")
    if probe.ports is None:
        return
    ports, (first, last) = probe.ports, probe.ports.worker_range
    for (source, node), seen_ports in closed.items():
        # where NCCL and gloo meet, the kernel chooses the port
        span = f"{ports.base}-{ports.base + STRIDE - 1}, {first}-{last}, net.ipv4.ip_local_port_range"
        yield _error("ports-closed", node, join_and_count_rest(seen_ports, max_shown=3), source=source, span=span)


def _check_mtu(probe: ClusterProbe) -> Iterator[Finding]:
    """Yield interfaces whose packets are of another size than the others': large ones are lost between them."""
    sizes = Counter(one.mtu for one in probe.addresses.values() if one.mtu)
    most = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for name, one in probe.addresses.items():
        if one.mtu and one.mtu != most:
            seen = _("{interface}: MTU {mtu}, there {most}").format(interface=one.interface, mtu=one.mtu, most=most)
            yield _warning("mtu-differs", name, seen, interface=one.interface, most=str(most))


# ---- all of them


def check_nodes(
    context: ClusterContext, probe: ClusterProbe, paths: Sequence[str] = (), unreached: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Return all that is wrong with the nodes, on each of which `paths` are to be, errors first, then by node."""
    findings = [*unreached, *_check_clocks(probe), *_check_ports(probe), *_check_mtu(probe)]
    for name, facts in probe.facts.items():
        if probe.is_node_inplace(name):
            findings += check_installation(name, facts.installation, probe.spec(name).data, context)
        else:
            findings += _check_engine(name, facts, context)
        for check in (_check_gpus, _check_disk, _check_machine):
            findings += check(name, facts, context)
        for path in set(paths) - set(facts.existing_paths):
            if facts.disk.there or not path.startswith(f"{facts.disk.path}/"):  # else the disk is reported
                findings.append(_error("path-missing", f"{name}: {path}", ""))
    return tuple(sorted(findings, key=lambda one: (LEVELS.index(one.level), one.where)))


def format_findings(findings: Sequence[Finding]) -> str:
    """Return findings as a table; nodes that have the very same are one row."""
    nodes: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for one in findings:
        nodes[one.level, one.title, one.seen, one.remedy].append(one.where)
    rows = [("node", "what", "next")]
    for (level, title, seen, remedy), where in nodes.items():
        mark = "" if level == "error" else f"{level}: "
        found = translate(title) + (f": {seen}" if seen else "")
        rows.append((join_and_count_rest(where), f"{mark}{found}", translate(remedy)))
    return "\n".join(align_rows(rows)) if len(rows) > 1 else ""


def print_findings_raise_if_errors(app: App, findings: Sequence[Finding]) -> None:
    if table := format_findings(findings):
        app.print_status(table)
    errors = [one for one in findings if one.level == "error"]
    if errors:
        nodes = sorted({one.where.partition(":")[0] for one in errors})
        raise NodeError(
            _("problems on nodes: {count}; nothing was started").format(count=len(errors)),
            where=", ".join(nodes),
            next_step=errors[0].remedy,
        )
