"""Check the nodes: engine, data disk, memory, limits, clock, GPUs, routes, and what earlier clusters left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlbox.amounts import GIB, card_text, duration_text, size_text
from rlbox.cluster.facts import ClusterContainer, NodeFacts, NodeGpu, NodePlace
from rlbox.cluster.plan import CLUSTER_LABEL, MAKER_LABEL, NODE_LABEL, plan_of_labels
from rlbox.cluster.survey import Survey, Way, candidates
from rlbox.engine.container import TARGET_LABEL
from rlbox.findings import Finding, listed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.target.target import Target


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """What a node has to have; memory and space in GiB, 0 and an empty text ask nothing.

    `target` with the checksum `lock` is what a node without an engine has to be brought to, and `mount` is where a
    container of its image has the data disk.

    `free_gib` is free space of the data disk; `paths` are read by every node, and are to be
    the same there; `cluster` is the name of the one that is asked for.
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


def needs_of(target: Target, cluster: str, lock: str, paths: tuple[str, ...] = ()) -> NodeNeeds:
    """Return what a target asks of its nodes."""
    own = target.hardware
    return NodeNeeds(
        gpus=own.gpus,
        gpu=own.gpu,
        gpu_memory_gib=own.gpu_memory_gib,
        memory_gib=own.memory_gib,
        cores=own.cores,
        free_gib=target.disk.need_gib,
        cluster=cluster,
        target=target.name,
        lock=lock,
        mount=target.disk.mount,
        paths=paths,
    )


_OLDEST = (20, 10)
_FEW_FILES = 4096
_SKEW_S, _LARGE_SKEW_S = 1.0, 60.0
_INODES = 10_000
_NEAR = 0.97  # memory that the kernel keeps to itself


def check_engines(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield where an engine is missing, or cannot be used as it is."""
    for name, facts in survey.facts.items():
        if not survey.here(name):
            yield from _engine(name, facts, needs)


def _engine(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    engine = facts.engine
    rows = {
        "absent": (
            "engine-absent",
            "it has no Docker engine",
            "`rlbox engine up` there, or its distribution's package; "
            f"or `rlbox apply {needs.target}` there, and Ray runs without one",
        ),
        "denied": (
            "engine-denied",
            f"user {facts.user} may not speak to its Docker engine",
            f"sudo usermod -aG docker {facts.user} there, then log in again",
        ),
        "silent": ("engine-silent", "its Docker engine does not answer", "restart it there: systemctl restart docker"),
        "broken": ("engine-broken", "its Docker engine refuses to say how it is", "see its log: journalctl -u docker"),
    }
    if engine.state != "ok":
        id_, title, remedy = rows.get(engine.state, rows["broken"])
        yield Finding(id=id_, title=title, seen=engine.said or engine.socket, where=name, remedy=remedy)
        return
    if _version(engine.version) < _OLDEST:
        yield Finding(
            id="engine-old",
            title=_("its Docker engine is too old"),
            seen=_("{version}, 20.10 or newer is needed").format(version=engine.version),
            where=name,
            remedy=_("install a newer one there"),
        )
    if any("rootless" in word for word in engine.security):
        yield Finding(
            id="engine-rootless",
            title=_("its Docker engine is rootless: containers of it have no network that other nodes reach"),
            seen=engine.socket,
            where=name,
            remedy=_("use the machine's own engine there"),
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.partition("+")[0].split(".")[:2] if part.isdigit())


def check_disks(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is wrong with data disks."""
    for name, facts in survey.facts.items():
        disk = facts.disk
        if not disk.there:
            yield Finding(
                id="disk-missing",
                title=_("its data disk is not there"),
                seen=disk.said,
                where=f"{name}: {disk.path}",
                remedy=_("make or mount it there, or name another with --data"),
            )
            continue
        if not disk.writable:
            yield Finding(
                id="disk-denied",
                title=_("user {user} may not write to its data disk").format(user=facts.user),
                seen=_("mode {mode:o}, owner {uid}").format(mode=disk.mode, uid=disk.uid),
                where=f"{name}: {disk.path}",
                remedy=_("chown {user} {path} there").format(user=facts.user, path=disk.path),
            )
        yield from _space(name, facts, needs)
        if disk.mode & 0o002 and not disk.mode & 0o1000:
            yield Finding(
                id="disk-open",
                title=_("everybody may remove what lies on its data disk"),
                level="warning",
                seen=_("mode {mode:o}").format(mode=disk.mode),
                where=f"{name}: {disk.path}",
                remedy=_("chmod 700 {path} there").format(path=disk.path),
            )


def _space(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    disk = facts.disk
    if disk.free < needs.free_gib * GIB:
        yield Finding(
            id="disk-full",
            title=_("its data disk has too little room"),
            seen=_("{free} free, {size} needed").format(
                free=size_text(disk.free), size=size_text(needs.free_gib * GIB)
            ),
            where=f"{name}: {disk.path}",
            remedy=_("free space there, or name another with --data"),
        )
    elif 0 < disk.inodes < _INODES:
        yield Finding(
            id="disk-full",
            title=_("its data disk has too few inodes left"),
            seen=_("{inodes} free").format(inodes=disk.inodes),
            where=f"{name}: {disk.path}",
            remedy=_("remove small files there, or name another with --data"),
        )
    if disk.root:
        yield Finding(
            id="disk-is-root",
            title=_("its data disk is the system's own: a full one stops the machine"),
            level="warning",
            seen=_("{free} free").format(free=size_text(disk.free)),
            where=f"{name}: {disk.path}",
            remedy=_("mount a disk there, or name another with --data"),
        )


def check_size(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is smaller than the target says, and limits that end programs."""
    for name, facts in survey.facts.items():
        if facts.memory < needs.memory_gib * GIB * _NEAR:
            yield Finding(
                id="memory-small",
                title=_("it has less memory than the target says"),
                seen=_("{memory}, {size} needed").format(
                    memory=size_text(facts.memory), size=size_text(needs.memory_gib * GIB)
                ),
                where=name,
                remedy=_("take another node, or correct hardware.memory_gib"),
            )
        if facts.cores < needs.cores:
            yield Finding(
                id="cores-few",
                title=_("it has fewer cores than the target says"),
                level="warning",
                seen=_("{cores}, {needs_cores} needed").format(cores=facts.cores, needs_cores=needs.cores),
                where=name,
                remedy=_("take another node, or correct hardware.cores"),
            )
        if facts.nofile < _FEW_FILES:
            yield Finding(
                id="files-few",
                title=_("its programs may open few files"),
                level="warning",
                seen=f"{facts.nofile}",
                where=name,
                remedy=_("raise nofile in /etc/security/limits.conf there"),
            )


def check_clocks(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield clocks that go apart: Ray bears it, tokens, certificates and merged logs do not."""
    for name in survey.offsets if len(survey.offsets) > 1 else ():
        skew = survey.skew(name)
        if abs(skew) >= _SKEW_S:
            way = _("ahead of") if skew > 0 else "behind"
            yield Finding(
                id="clock-skew",
                title=_("its clock is not that of the other nodes"),
                level="error" if abs(skew) >= _LARGE_SKEW_S else "warning",
                seen=_("{duration} {way} them").format(duration=duration_text(abs(skew)), way=way),
                where=name,
                remedy=_("set it there: timedatectl set-ntp true"),
            )


def check_paths(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what a job reads that a node lacks, or has another copy of."""
    for number, path in enumerate(needs.paths):
        found = {name: facts.paths[number] for name, facts in survey.facts.items() if len(facts.paths) > number}
        for name, one in found.items():
            disk = survey.facts[name].disk
            if not one.there and (disk.there or not path.startswith(f"{disk.path}/")):  # else that is what is told
                yield Finding(
                    id="path-missing",
                    title=_("what the job reads is not there"),
                    seen=one.said,
                    where=f"{name}: {path}",
                    remedy=_("copy it there, from a node that has it"),
                )
        there = {name: one for name, one in found.items() if one.there}
        first = next(iter(there), "")
        for name, one in there.items():
            if one.sum != there[first].sum:
                yield Finding(
                    id="path-differs",
                    title=_("what the job reads is another copy than that of {first}").format(first=first),
                    seen=_("{files} files of {bytes}, there {files2} of {bytes2}").format(
                        files=one.files,
                        bytes=size_text(one.bytes),
                        files2=there[first].files,
                        bytes2=size_text(there[first].bytes),
                    ),
                    where=f"{name}: {path}",
                    remedy=_("copy it anew from {first}").format(first=first),
                )


_SHOWN = 12


def check_installations(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what keeps Ray from running as processes, on the nodes where it is to."""
    for name, facts in survey.facts.items():
        if survey.here(name):
            yield from place_problems(name, facts.place, survey.options(name).data, needs)


def place_problems(name: str, place: NodePlace | None, data: str, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is wrong with the place of one node, whose data disk is `data`."""
    apply = f"rlbox apply {needs.target} --data {data}"
    if place is None:
        yield Finding(
            id="place-missing",
            title=_("target {target} was not brought to it, and Ray is to run there without an engine").format(
                target=needs.target
            ),
            where=name,
            remedy=_("{apply}, there").format(apply=apply),
        )
        return
    if not place.whole:
        yield Finding(
            id="place-torn",
            title=_("target {target} was not wholly brought to it").format(target=needs.target),
            seen=place.own,
            where=name,
            remedy=_("{apply}, there").format(apply=apply),
        )
    elif place.lock != needs.lock:
        yield Finding(
            id="place-differs",
            title=_("it is at another lock of target {target} than this machine has").format(target=needs.target),
            seen=_("{lock}, here {lock2}").format(lock=place.lock[:_SHOWN], lock2=needs.lock[:_SHOWN]),
            where=name,
            remedy=_("bring this project there, then {apply}").format(apply=apply),
        )
    there = needs.mount if place.image else place.data
    if there != data:
        yield Finding(
            id="place-disk",
            title=_("target {target} was brought to it for another data disk").format(target=needs.target),
            seen=there,
            where=name,
            remedy=f"--data {there}, or {apply} there",
        )


def check_leftovers(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield containers of other clusters that have ended and were never taken away, with their owner."""
    for name, facts in survey.facts.items():
        dead = [one for one in facts.clusters if not one.going and one.labels.get(CLUSTER_LABEL) != needs.cluster]
        if dead:
            yield Finding(
                id="remains",
                title=_("containers of earlier clusters lie there"),
                level="warning",
                seen=listed([f"{one.name} ({_whose(one)})" for one in dead]),
                where=name,
                remedy=_("{down}, if it is yours").format(down=_down(dead[0])),
            )


def _down(one: ClusterContainer) -> str:
    target, name = one.labels.get(TARGET_LABEL, "TARGET"), one.labels.get(CLUSTER_LABEL, "")
    return f"rlbox cluster down {target} --name {name}"


def _whose(one: ClusterContainer) -> str:
    return f"of {one.labels.get(MAKER_LABEL, 'somebody')}, {one.status} with {one.exit_code}"


def check_addresses(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield nodes that the others reach at no address, or at one that Ray cannot use."""
    for name, facts in survey.facts.items():
        seat = survey.seats.get(name)
        if seat is None:
            tried = candidates(survey, name)
            said = sorted({f"{way.source}: {way.said}" for way in survey.ways if way.goal == name and way.said})
            yield Finding(
                id="no-way",
                title=_("the other nodes do not reach it"),
                seen=_("at {listed}: {listed2}").format(listed=listed(tried) or _("no address"), listed2=listed(said))
                if said
                else _("at {listed}").format(listed=listed(tried)),
                where=name,
                remedy=_("open the way between the nodes, or name its address: cluster.nodes with address"),
                breaks=("ports-closed", "mtu-differs"),
            )
        elif ":" in seat.address:
            yield Finding(
                id="ipv6-alone",
                title=_("the other nodes reach it by IPv6 alone, which Ray does not take between machines"),
                seen=seat.address,
                where=name,
                remedy=_("give the nodes addresses of IPv4 for each other, and name them: cluster.nodes with address"),
            )
        own = facts.names.get(facts.host, ())
        if own and all(ip.startswith("127.") or ip == "::1" for ip in own):
            yield Finding(
                id="name-is-loopback",
                title=_("its own name is a loopback address there; Ray and NCCL are told the right one"),
                level="note",
                seen=_("{host} is {own}").format(host=facts.host, own=", ".join(own)),
                where=name,
                remedy="",
            )


def check_ports(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield ports of the plan that are taken, or that do not let another node in."""
    for name, taken in survey.taken.items():
        if taken:
            yield Finding(
                id="ports-taken",
                title=_("ports of the cluster are taken there"),
                seen=listed([f"{port} by {holder}" for port, holder in sorted(taken.items())]),
                where=name,
                remedy=_("--port N: the first of 20 others, or end what has them if it is yours"),
            )
    if survey.ports is None:
        return
    closed: dict[tuple[str, str], list[Way]] = defaultdict(list)
    for way in survey.ways:
        if way.said and way.port in survey.ports.all() and way.port not in survey.taken.get(way.goal, {}):
            closed[way.source, way.goal].append(way)
    for (source, goal), ways in closed.items():
        yield Finding(
            id="ports-closed",
            title=_("{source} does not reach ports of it").format(source=source),
            seen=f"{listed([str(way.port) for way in ways], most=6)}: {ways[0].said}",
            where=goal,
            remedy=_("let {source} through in its firewall: {span}").format(source=source, span=_span(survey, goal)),
        )


def _span(survey: Survey, goal: str) -> str:
    """Return the ports of the cluster on a node, and those that its kernel gives to who asks for none, as NCCL does."""
    ports, (first, last) = survey.ports, survey.facts[goal].ephemeral
    return f"{ports.base}-{ports.base + 19}, {ports.workers}-{ports.worker_range[1]}, {first}-{last}" if ports else ""


def check_routes(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield interfaces whose packets are of another size than the others': large ones are lost between them."""
    sizes = {name: seat.mtu for name, seat in survey.seats.items() if seat.mtu}
    if len(set(sizes.values())) < 2:
        return
    most = max(sizes.values(), key=lambda size: (list(sizes.values()).count(size), size))
    for name, mtu in sizes.items():
        if mtu != most:
            seat = survey.seats[name]
            yield Finding(
                id="mtu-differs",
                title=_("packets of its interface have another size than those of the other nodes"),
                level="warning",
                seen=_("{interface}: MTU {mtu}, there {most}").format(interface=seat.interface, mtu=mtu, most=most),
                where=name,
                remedy=_("ip link set {interface} mtu {most} there").format(interface=seat.interface, most=most),
            )


_NEAR_MEMORY = 0.97  # a card reports a little less than its name says
_IDLE = 0.05


def check_gpus(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield GPUs that are missing, other ones than the target's, ill, or taken by somebody."""
    if not needs.gpus:
        return
    for name, facts in survey.facts.items():
        yield from _driver(name, facts, needs)
        yield from _runtime(name, facts) if not survey.here(name) else ()
        yield from _kind(name, facts, needs)
        yield from _health(name, facts)
        yield from _taken(name, facts)
        yield from _given(name, facts, needs)
    yield from _drivers(survey)


def _driver(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    count = len(facts.gpu.gpus)
    if count < needs.gpus:
        yield Finding(
            id="gpus-few",
            title=_("it has fewer GPUs than the target says"),
            seen=_("{count} of {gpus}{said}").format(
                count=count, gpus=needs.gpus, said=f": {facts.gpu.said}" if facts.gpu.said else ""
            ),
            where=name,
            remedy=_(
                "see dmesg and nvidia-smi there; a GPU that fell off the bus comes back by a restart of the machine"
            ),
        )


def _runtime(name: str, facts: NodeFacts) -> Iterator[Finding]:
    count, engine = len(facts.gpu.gpus), facts.engine
    if count and engine.state == "ok" and "nvidia" not in engine.runtimes and not engine.cdi:
        yield Finding(
            id="gpu-runtime",
            title=_("its Docker engine gives containers no GPU"),
            level="warning",
            seen=_("runtimes: {runtimes}").format(runtimes=", ".join(engine.runtimes)),
            where=name,
            remedy=_("install nvidia-container-toolkit there, then: nvidia-ctk runtime configure"),
        )


def _kind(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    other = Counter(gpu.name for gpu in facts.gpu.gpus if needs.gpu and gpu.name != needs.gpu)
    for kind, count in other.items():
        yield Finding(
            id="gpu-other",
            title=_("it has other GPUs than the target says"),
            level="warning",
            seen=_("{count} x {kind}, not {gpu}").format(count=count, kind=kind, gpu=needs.gpu),
            where=name,
            remedy=_("take another node, or correct hardware.gpu"),
        )
    small = [gpu for gpu in facts.gpu.gpus if gpu.memory < needs.gpu_memory_gib * GIB * _NEAR_MEMORY]
    if small:
        yield Finding(
            id="gpu-small",
            title=_("its GPUs have less memory than the target says"),
            seen=_("GPU {numbers}: {memory}, {gpu_memory_gib:g} needed").format(
                numbers=_numbers(small), memory=card_text(small[0].memory), gpu_memory_gib=needs.gpu_memory_gib
            ),
            where=name,
            remedy=_("take another node, or correct hardware.gpu_memory_gib"),
        )


def _health(name: str, facts: NodeFacts) -> Iterator[Finding]:
    ill = [gpu for gpu in facts.gpu.gpus if gpu.errors]
    if ill:
        yield Finding(
            id="gpu-ill",
            title=_("memory of its GPUs has errors that were not corrected"),
            seen=f"GPU {_numbers(ill)}",
            where=name,
            remedy=_("have the card reset or replaced before a long run"),
        )


def _taken(name: str, facts: NodeFacts) -> Iterator[Finding]:
    taken = [gpu for gpu in facts.gpu.gpus if gpu.used > gpu.memory * _IDLE]
    if not taken:
        return
    known = {gpu.uuid for gpu in taken}
    words = [f"{one.user or 'somebody'} ({one.pid}, {one.words})" for one in facts.gpu.holders if one.uuid in known]
    who = f": {listed(words)}" if words else ""
    yield Finding(
        id="gpus-taken",
        title=_("its GPUs are in use"),
        seen=f"GPU {_numbers(taken)}, {card_text(sum(gpu.used for gpu in taken))}{who}",
        where=name,
        remedy=_("ask their owner, wait, or take another node"),
    )


def _given(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield that another cluster has GPUs there, at work or not: each cluster's are the first of its node."""
    for one in facts.clusters:
        plan = plan_of_labels(one.labels) if one.going else None
        member = plan.member(one.labels.get(NODE_LABEL, "")) if plan else None
        if plan and member and member.gpus and (plan.name, member.uid) != (needs.cluster, facts.uid):
            yield Finding(
                id="gpus-given",
                title=_("another cluster has its GPUs"),
                seen=_("{plan} of {maker} has {gpus} of {count}").format(
                    plan=plan.name, maker=plan.maker, gpus=member.gpus, count=len(facts.gpu.gpus)
                ),
                where=name,
                remedy=_(
                    "wait, take another node, or end that one if it is yours: rlbox cluster down {target} --name {plan}"
                ).format(target=plan.target, plan=plan.name),
            )


def _drivers(survey: Survey) -> Iterator[Finding]:
    found = {name: facts.gpu.gpus[0].driver for name, facts in survey.facts.items() if facts.gpu.gpus}
    usual = Counter(found.values()).most_common(1)[0][0] if found else ""
    for name, driver in found.items():
        if driver != usual:
            yield Finding(
                id="drivers-differ",
                title=_("its GPU driver is another than that of the other nodes"),
                level="warning",
                seen=_("{driver}, there {usual}").format(driver=driver, usual=usual),
                where=name,
                remedy=_("bring all nodes to one driver: NCCL is tried between equal ones"),
            )


def _numbers(gpus: list[NodeGpu]) -> str:
    return listed([str(gpu.index) for gpu in gpus], most=8)
