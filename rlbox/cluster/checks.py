"""Check the nodes before anything starts: engine, disk, memory, clock, GPUs, network, earlier clusters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlbox.amounts import GIB, card_text, columns, duration_text, size_text
from rlbox.app import App
from rlbox.cluster.facts import Installation, NodeFacts, NodeGpu, RayInstance
from rlbox.cluster.plan import CLUSTER_LABEL, MAKER_LABEL, NODE_LABEL, STRIDE, plan_of_labels
from rlbox.cluster.probe import ClusterProbe, ConnectionAttempt, candidate_addresses
from rlbox.engine.container import TARGET_LABEL
from rlbox.errors import NodeError
from rlbox.findings import LEVELS, Finding, listed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.target.target import Target


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """What a node has to have; memory and space in GiB, 0 and an empty text ask nothing.

    A node without an engine needs the `target` at the lock with the checksum `lock`; `mount` is where a container of
    its image has the data disk. `paths` are to be the same on every node; `cluster` is the one to be started.
    """

    gpus: int
    gpu: str
    gpu_memory_gib: float
    memory_gib: float
    cores: int
    free_gib: float
    cluster: str
    target: str
    lock: str
    mount: str
    paths: tuple[str, ...] = ()


def find_needs(target: Target, cluster: str, lock: str, paths: tuple[str, ...] = ()) -> NodeNeeds:
    """Return what a target needs of every node."""
    hardware = target.hardware
    return NodeNeeds(
        gpus=hardware.gpus,
        gpu=hardware.gpu,
        gpu_memory_gib=hardware.gpu_memory_gib,
        memory_gib=hardware.memory_gib,
        cores=hardware.cores,
        free_gib=target.disk.need_gib,
        cluster=cluster,
        target=target.name,
        lock=lock,
        mount=target.disk.mount,
        paths=paths,
    )


def _error(id_: str, where: str, title: str, seen: str, remedy: str, breaks: tuple[str, ...] = ()) -> Finding:
    return Finding(id=id_, title=title, seen=seen, where=where, remedy=remedy, breaks=breaks)


def _warning(id_: str, where: str, title: str, seen: str, remedy: str) -> Finding:
    return Finding(id=id_, title=title, level="warning", seen=seen, where=where, remedy=remedy)


_OLDEST_ENGINE = (20, 10)
_FEW_FILES, _FEW_INODES = 4096, 10_000
_SKEW_S, _LARGE_SKEW_S = 1.0, 60.0
_ALMOST_ALL = 0.97
"""Of a machine's memory, or of a GPU's: kernel and driver keep some to themselves."""
_IDLE = 0.05

_ENGINE_STATES = {
    "denied": (
        _("user {user} may not speak to its Docker engine"),
        _("sudo usermod -aG docker {user} there, then log in again"),
    ),
    "silent": (_("its Docker engine does not answer"), _("restart it there: systemctl restart docker")),
    "broken": (_("its Docker engine refuses to say how it is"), _("see its log: journalctl -u docker")),
    "absent": (
        _("it has no Docker engine"),
        _(
            "`rlbox engine up` there, or its distribution's package; or `rlbox apply {target}` there, and Ray runs "
            "without one"
        ),
    ),
}


def check_engines(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    for name, facts in probe.facts.items():
        engine = facts.engine
        if probe.is_inplace(name):
            continue
        if engine.state != "ok":
            title, remedy = _ENGINE_STATES.get(engine.state, _ENGINE_STATES["broken"])
            values = {"user": facts.user, "target": needs.target}
            seen = engine.said or engine.socket
            yield _error(f"engine-{engine.state}", name, title.format(**values), seen, remedy.format(**values))
            continue
        if _engine_version(engine.version) < _OLDEST_ENGINE:
            seen = _("{version}, 20.10 or newer is needed").format(version=engine.version)
            yield _error("engine-old", name, _("its Docker engine is too old"), seen, _("install a newer one there"))
        if any("rootless" in option for option in engine.security):
            title = _("its Docker engine is rootless: containers of it have no network that other nodes reach")
            yield _error("engine-rootless", name, title, engine.socket, _("use the machine's own engine there"))


def _engine_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.partition("+")[0].split(".")[:2] if part.isdigit())


def check_installations(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what keeps Ray from running as processes, on the nodes where it is to."""
    for name, facts in probe.facts.items():
        if probe.is_inplace(name):
            yield from check_installation(name, facts.installation, probe.spec(name).data, needs)


def check_installation(name: str, found: Installation | None, data: str, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is wrong with the installed target of a node whose data disk is `data`."""
    apply = f"rlbox apply {needs.target} --data {data}"
    there = _("{apply}, there").format(apply=apply)
    if found is None:
        title = _("target {target} was not brought to it, and Ray is to run there without an engine")
        yield _error("place-missing", name, title.format(target=needs.target), "", there)
        return
    if not found.whole:
        title = _("target {target} was not wholly brought to it").format(target=needs.target)
        yield _error("place-torn", name, title, found.own, there)
    elif found.lock != needs.lock:
        title = _("it is at another lock of target {target} than this machine has").format(target=needs.target)
        seen = _("{lock}, here {lock2}").format(lock=found.lock[:12], lock2=needs.lock[:12])
        yield _error(
            "place-differs", name, title, seen, _("bring this project there, then {apply}").format(apply=apply)
        )
    disk = needs.mount if found.image else found.data
    if disk != data:
        title = _("target {target} was brought to it for another data disk").format(target=needs.target)
        yield _error("place-disk", name, title, disk, f"--data {disk}, or {apply} there")


def check_disks(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    for name, facts in probe.facts.items():
        disk, where = facts.disk, f"{name}: {facts.disk.path}"
        mode = _("mode {mode:o}").format(mode=disk.mode)
        if not disk.there:
            remedy = _("make or mount it there, or name another with --data")
            yield _error("disk-missing", where, _("its data disk is not there"), disk.said, remedy)
            continue
        if not disk.writable:
            title = _("user {user} may not write to its data disk").format(user=facts.user)
            seen = _("mode {mode:o}, owner {uid}").format(mode=disk.mode, uid=disk.uid)
            remedy = _("chown {user} {path} there").format(user=facts.user, path=disk.path)
            yield _error("disk-denied", where, title, seen, remedy)
        free = _("{free} free").format(free=size_text(disk.free))
        if disk.free < needs.free_gib * GIB:
            need = size_text(needs.free_gib * GIB)
            seen = _("{free} free, {size} needed").format(free=size_text(disk.free), size=need)
            remedy = _("free space there, or name another with --data")
            yield _error("disk-full", where, _("its data disk has too little room"), seen, remedy)
        elif 0 < disk.inodes < _FEW_INODES:
            seen = _("{inodes} free").format(inodes=disk.inodes)
            remedy = _("remove small files there, or name another with --data")
            yield _error("disk-full", where, _("its data disk has too few inodes left"), seen, remedy)
        if disk.root:
            title = _("its data disk is the system's own: a full one stops the machine")
            yield _warning("disk-is-root", where, title, free, _("mount a disk there, or name another with --data"))
        if disk.mode & 0o002 and not disk.mode & 0o1000:
            title = _("everybody may remove what lies on its data disk")
            yield _warning("disk-open", where, title, mode, _("chmod 700 {path} there").format(path=disk.path))


def check_size(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is smaller than the target says, and limits that end programs."""
    for name, facts in probe.facts.items():
        if facts.memory < needs.memory_gib * GIB * _ALMOST_ALL:
            need = size_text(needs.memory_gib * GIB)
            seen = _("{memory}, {size} needed").format(memory=size_text(facts.memory), size=need)
            remedy = _("take another node, or correct hardware.memory_gib")
            yield _error("memory-small", name, _("it has less memory than the target says"), seen, remedy)
        if facts.cores < needs.cores:
            seen = _("{cores}, {needs_cores} needed").format(cores=facts.cores, needs_cores=needs.cores)
            remedy = _("take another node, or correct hardware.cores")
            yield _warning("cores-few", name, _("it has fewer cores than the target says"), seen, remedy)
        if facts.nofile < _FEW_FILES:
            remedy = _("raise nofile in /etc/security/limits.conf there")
            yield _warning("files-few", name, _("its programs may open few files"), f"{facts.nofile}", remedy)


def check_clocks(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield clocks that differ: Ray bears it, tokens and merged logs do not."""
    for name in probe.offsets if len(probe.offsets) > 1 else ():
        skew = probe.skew(name)
        if abs(skew) >= _SKEW_S:
            create = _error if abs(skew) >= _LARGE_SKEW_S else _warning
            way = _("ahead of") if skew > 0 else "behind"
            seen = _("{duration} {way} them").format(duration=duration_text(abs(skew)), way=way)
            title = _("its clock is not that of the other nodes")
            yield create("clock-skew", name, title, seen, _("set it there: timedatectl set-ntp true"))


def check_paths(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what a job reads that a node lacks, or has another copy of."""
    for number, path in enumerate(needs.paths):
        found = {name: facts.paths[number] for name, facts in probe.facts.items() if len(facts.paths) > number}
        for name, one in found.items():
            disk = probe.facts[name].disk
            if not one.there and (disk.there or not path.startswith(f"{disk.path}/")):  # else the disk is reported
                remedy = _("copy it there, from a node that has it")
                yield _error("path-missing", f"{name}: {path}", _("what the job reads is not there"), one.said, remedy)
        present = {name: one for name, one in found.items() if one.there}
        for name, one in present.items():
            first, other = next(iter(present.items()))
            if one.sum != other.sum:
                title = _("what the job reads is another copy than that of {first}").format(first=first)
                seen = _("{files} files of {bytes}, there {files2} of {bytes2}").format(
                    files=one.files, bytes=size_text(one.bytes), files2=other.files, bytes2=size_text(other.bytes)
                )
                remedy = _("copy it anew from {first}").format(first=first)
                yield _error("path-differs", f"{name}: {path}", title, seen, remedy)


def check_leftovers(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield containers of other clusters that have ended and were never removed, with their owner."""
    for name, facts in probe.facts.items():
        dead = [one for one in facts.clusters if not one.is_running and one.labels.get(CLUSTER_LABEL) != needs.cluster]
        if dead:
            labels = dead[0].labels
            down = f"rlbox cluster down {labels.get(TARGET_LABEL, 'TARGET')} --name {labels.get(CLUSTER_LABEL, '')}"
            remedy = _("{down}, if it is yours").format(down=down)
            seen = listed([_describe_instance(one) for one in dead])
            yield _warning("remains", name, _("containers of earlier clusters lie there"), seen, remedy)


def _describe_instance(one: RayInstance) -> str:
    return f"{one.name} (of {one.labels.get(MAKER_LABEL, 'somebody')}, {one.status} with {one.exit_code})"


# ---- network


def check_addresses(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield nodes that the others reach at no address, or at one that Ray cannot use."""
    for name, facts in probe.facts.items():
        endpoint = probe.endpoints.get(name)
        if endpoint is None:
            tried = listed(candidate_addresses(probe, name)) or _("no address")
            said = sorted({f"{one.source}: {one.said}" for one in probe.attempts if one.target == name and one.said})
            seen = _("at {listed}: {listed2}") if said else _("at {listed}")
            yield _error(
                "no-way",
                name,
                _("the other nodes do not reach it"),
                seen.format(listed=tried, listed2=listed(said)),
                _("open the way between the nodes, or name its address: cluster.nodes with address"),
                breaks=("ports-closed", "mtu-differs"),
            )
        elif ":" in endpoint.address:
            title = _("the other nodes reach it by IPv6 alone, which Ray does not take between machines")
            remedy = _("give the nodes addresses of IPv4 for each other, and name them: cluster.nodes with address")
            yield _error("ipv6-alone", name, title, endpoint.address, remedy)
        own = facts.names.get(facts.host, ())
        if own and all(ip.startswith("127.") or ip == "::1" for ip in own):
            title = _("its own name is a loopback address there; Ray and NCCL are told the right one")
            seen = _("{host} is {own}").format(host=facts.host, own=", ".join(own))
            yield Finding(id="name-is-loopback", title=title, level="note", seen=seen, where=name)


def check_ports(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield ports of the plan that are taken, or that do not let another node in."""
    for name, taken in probe.taken.items():
        if taken:
            seen = listed([f"{port} by {holder}" for port, holder in sorted(taken.items())])
            remedy = _("--port N: the first of 20 others, or end what has them if it is yours")
            yield _error("ports-taken", name, _("ports of the cluster are taken there"), seen, remedy)
    if probe.ports is None:
        return
    closed: dict[tuple[str, str], list[ConnectionAttempt]] = defaultdict(list)
    for one in probe.attempts:
        if one.said and one.port in probe.ports.all() and one.port not in probe.taken.get(one.target, {}):
            closed[one.source, one.target].append(one)
    for (source, target), attempts in closed.items():
        # where NCCL and gloo meet, the kernel chooses the port
        first, last = probe.facts[target].ephemeral
        base, workers = probe.ports.base, probe.ports.worker_range
        span = f"{base}-{base + STRIDE - 1}, {workers[0]}-{workers[1]}, {first}-{last}"
        title = _("{source} does not reach ports of it").format(source=source)
        seen = f"{listed([str(one.port) for one in attempts], most=6)}: {attempts[0].said}"
        remedy = _("let {source} through in its firewall: {span}").format(source=source, span=span)
        yield _error("ports-closed", target, title, seen, remedy)


def check_mtu(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield interfaces whose packets are of another size than the others': large ones are lost between them."""
    sizes = Counter(one.mtu for one in probe.endpoints.values() if one.mtu)
    most = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for name, one in probe.endpoints.items():
        if one.mtu and one.mtu != most:
            title = _("packets of its interface have another size than those of the other nodes")
            seen = _("{interface}: MTU {mtu}, there {most}").format(interface=one.interface, mtu=one.mtu, most=most)
            remedy = _("ip link set {interface} mtu {most} there").format(interface=one.interface, most=most)
            yield _warning("mtu-differs", name, title, seen, remedy)


# ---- GPUs


def check_gpus(probe: ClusterProbe, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield GPUs that are missing, other ones than the target's, faulty, or taken by somebody."""
    if not needs.gpus:
        return
    for name, facts in probe.facts.items():
        yield from _check_gpu_access(name, facts, needs, inplace=probe.is_inplace(name))
        yield from _check_gpu_kinds(name, facts, needs)
        yield from _check_gpu_use(name, facts, needs)
    drivers = {name: facts.gpu.gpus[0].driver for name, facts in probe.facts.items() if facts.gpu.gpus}
    usual = Counter(drivers.values()).most_common(1)[0][0] if drivers else ""
    for name, driver in drivers.items():
        if driver != usual:
            title = _("its GPU driver is another than that of the other nodes")
            seen = _("{driver}, there {usual}").format(driver=driver, usual=usual)
            remedy = _("bring all nodes to one driver: NCCL is tried between equal ones")
            yield _warning("drivers-differ", name, title, seen, remedy)


def _check_gpu_access(name: str, facts: NodeFacts, needs: NodeNeeds, *, inplace: bool) -> Iterator[Finding]:
    count, engine = len(facts.gpu.gpus), facts.engine
    if count < needs.gpus:
        said = f": {facts.gpu.said}" if facts.gpu.said else ""
        seen = _("{count} of {gpus}{said}").format(count=count, gpus=needs.gpus, said=said)
        remedy = _("see dmesg and nvidia-smi there; a GPU that fell off the bus comes back by a restart of the machine")
        yield _error("gpus-few", name, _("it has fewer GPUs than the target says"), seen, remedy)
    if count and not inplace and engine.state == "ok" and "nvidia" not in engine.runtimes and not engine.cdi:
        seen = _("runtimes: {runtimes}").format(runtimes=", ".join(engine.runtimes))
        remedy = _("install nvidia-container-toolkit there, then: nvidia-ctk runtime configure")
        yield _warning("gpu-runtime", name, _("its Docker engine gives containers no GPU"), seen, remedy)


def _check_gpu_kinds(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    other = Counter(gpu.name for gpu in facts.gpu.gpus if needs.gpu and gpu.name != needs.gpu)
    for kind, count in other.items():
        seen = _("{count} x {kind}, not {gpu}").format(count=count, kind=kind, gpu=needs.gpu)
        remedy = _("take another node, or correct hardware.gpu")
        yield _warning("gpu-other", name, _("it has other GPUs than the target says"), seen, remedy)
    small = [gpu for gpu in facts.gpu.gpus if gpu.memory < needs.gpu_memory_gib * GIB * _ALMOST_ALL]
    if small:
        seen = _("GPU {numbers}: {memory}, {gpu_memory_gib:g} needed").format(
            numbers=_numbers(small), memory=card_text(small[0].memory), gpu_memory_gib=needs.gpu_memory_gib
        )
        remedy = _("take another node, or correct hardware.gpu_memory_gib")
        yield _error("gpu-small", name, _("its GPUs have less memory than the target says"), seen, remedy)
    ill = [gpu for gpu in facts.gpu.gpus if gpu.errors]
    if ill:
        title = _("memory of its GPUs has errors that were not corrected")
        remedy = _("have the card reset or replaced before a long run")
        yield _error("gpu-ill", name, title, f"GPU {_numbers(ill)}", remedy)


def _check_gpu_use(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    taken = [gpu for gpu in facts.gpu.gpus if gpu.used > gpu.memory * _IDLE]
    if taken:
        users = describe_gpu_users(facts, taken)
        seen = f"GPU {_numbers(taken)}, {card_text(sum(gpu.used for gpu in taken))}{users}"
        remedy = _("ask their owner, wait, or take another node")
        yield _error("gpus-taken", name, _("its GPUs are in use"), seen, remedy)
    for one in facts.clusters:  # at work or not: each cluster's GPUs are the first of its node
        plan = plan_of_labels(one.labels) if one.is_running else None
        member = plan.member(one.labels.get(NODE_LABEL, "")) if plan else None
        if plan and member and member.gpus and (plan.name, member.uid) != (needs.cluster, facts.uid):
            seen = _("{plan} of {maker} has {gpus} of {count}").format(
                plan=plan.name, maker=plan.maker, gpus=member.gpus, count=len(facts.gpu.gpus)
            )
            remedy = _(
                "wait, take another node, or end that one if it is yours: rlbox cluster down {target} --name {plan}"
            ).format(target=plan.target, plan=plan.name)
            yield _error("gpus-given", name, _("another cluster has its GPUs"), seen, remedy)


def describe_gpu_users(facts: NodeFacts | None, gpus: Sequence[NodeGpu]) -> str:
    """Return who has processes on GPUs, empty where nobody is seen."""
    uuids = {gpu.uuid for gpu in gpus}
    holders = [one for one in facts.gpu.holders if one.uuid in uuids] if facts else []
    names = [f"{one.user or 'somebody'} ({one.pid}, {one.command})" for one in holders]
    return f": {listed(names)}" if names else ""


def _numbers(gpus: Sequence[NodeGpu]) -> str:
    return listed([str(gpu.index) for gpu in gpus], most=8)


# ---- all of them

CHECKS: tuple[Callable[[ClusterProbe, NodeNeeds], Iterable[Finding]], ...] = (
    check_engines,
    check_installations,
    check_gpus,
    check_disks,
    check_size,
    check_clocks,
    check_addresses,
    check_ports,
    check_mtu,
    check_paths,
    check_leftovers,
)


def check_nodes(probe: ClusterProbe, needs: NodeNeeds, unreached: Sequence[Finding] = ()) -> tuple[Finding, ...]:
    """Return all that is wrong with the nodes, errors first, then by node; what follows from another is left out."""
    found = [*unreached, *(finding for check in CHECKS for finding in check(probe, needs))]
    kept = [one for one in found if not any(one.id in other.breaks and one.where == other.where for other in found)]
    return tuple(sorted(kept, key=lambda one: (LEVELS.index(one.level), one.where)))


def format_findings(findings: Sequence[Finding]) -> str:
    """Return findings as a table, without notes; nodes that have the very same are one row."""
    nodes: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for one in findings:
        if one.level != "note":
            nodes[one.level, one.title, one.seen, one.remedy].append(one.where)
    rows = [("node", "what", "next")]
    for (level, title, seen, remedy), where in nodes.items():
        mark = "" if level == "error" else f"{level}: "
        rows.append((listed(where), f"{mark}{title}" + (f": {seen}" if seen else ""), remedy))
    return "\n".join(columns(rows)) if len(rows) > 1 else ""


def raise_findings(app: App, findings: Sequence[Finding]) -> None:
    """Show what is wrong with nodes; `NodeError` when something of it is an error."""
    if table := format_findings(findings):
        app.say(table)
    errors = [one for one in findings if one.level == "error"]
    if not errors:
        return
    nodes = {one.where.partition(":")[0] for one in errors}
    count = _("1 problem") if len(errors) == 1 else _("{count} problems").format(count=len(errors))
    where = _("1 node") if len(nodes) == 1 else _("{count} nodes").format(count=len(nodes))
    raise NodeError(
        _("{count} on {where}: nothing was started").format(count=count, where=where),
        where=", ".join(sorted(nodes)),
        next_step=errors[0].remedy,
    )
