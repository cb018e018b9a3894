"""Judge each node by itself: engine, data disk, memory, limits, clock."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.amounts import GIB, duration_text, size_text
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.survey import Survey
from rlbox.findings import Finding

_OLDEST = (20, 10)
_FEW_FILES = 4096
_SKEW_S, _LARGE_SKEW_S = 1.0, 60.0
_INODES = 10_000
_NEAR = 0.97  # memory that the kernel keeps to itself


def judge_engines(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
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
            title="its Docker engine is too old",
            seen=f"{engine.version}, 20.10 or newer is needed",
            where=name,
            remedy="install a newer one there",
        )
    if any("rootless" in word for word in engine.security):
        yield Finding(
            id="engine-rootless",
            title="its Docker engine is rootless: containers of it have no network that other nodes reach",
            seen=engine.socket,
            where=name,
            remedy="use the machine's own engine there",
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.partition("+")[0].split(".")[:2] if part.isdigit())


def judge_disks(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is wrong with data disks."""
    for name, facts in survey.facts.items():
        disk = facts.disk
        if not disk.there:
            yield Finding(
                id="disk-missing",
                title="its data disk is not there",
                seen=disk.said,
                where=f"{name}: {disk.path}",
                remedy="make or mount it there, or name another with --data",
            )
            continue
        if not disk.writable:
            yield Finding(
                id="disk-denied",
                title=f"user {facts.user} may not write to its data disk",
                seen=f"mode {disk.mode:o}, owner {disk.uid}",
                where=f"{name}: {disk.path}",
                remedy=f"chown {facts.user} {disk.path} there",
            )
        yield from _space(name, facts, needs)
        if disk.mode & 0o002 and not disk.mode & 0o1000:
            yield Finding(
                id="disk-open",
                title="everybody may remove what lies on its data disk",
                level="warning",
                seen=f"mode {disk.mode:o}",
                where=f"{name}: {disk.path}",
                remedy=f"chmod 700 {disk.path} there",
            )


def _space(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    disk = facts.disk
    if disk.free < needs.free_gib * GIB:
        yield Finding(
            id="disk-full",
            title="its data disk has too little room",
            seen=f"{size_text(disk.free)} free, {size_text(needs.free_gib * GIB)} needed",
            where=f"{name}: {disk.path}",
            remedy="free space there, or name another with --data",
        )
    elif 0 < disk.inodes < _INODES:
        yield Finding(
            id="disk-full",
            title="its data disk has too few inodes left",
            seen=f"{disk.inodes} free",
            where=f"{name}: {disk.path}",
            remedy="remove small files there, or name another with --data",
        )
    if disk.root:
        yield Finding(
            id="disk-is-root",
            title="its data disk is the system's own: a full one stops the machine",
            level="warning",
            seen=f"{size_text(disk.free)} free",
            where=f"{name}: {disk.path}",
            remedy="mount a disk there, or name another with --data",
        )


def judge_size(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what is smaller than the target says, and limits that end programs."""
    for name, facts in survey.facts.items():
        if facts.memory < needs.memory_gib * GIB * _NEAR:
            yield Finding(
                id="memory-small",
                title="it has less memory than the target says",
                seen=f"{size_text(facts.memory)}, {size_text(needs.memory_gib * GIB)} needed",
                where=name,
                remedy="take another node, or correct hardware.memory_gib",
            )
        if facts.cores < needs.cores:
            yield Finding(
                id="cores-few",
                title="it has fewer cores than the target says",
                level="warning",
                seen=f"{facts.cores}, {needs.cores} needed",
                where=name,
                remedy="take another node, or correct hardware.cores",
            )
        if facts.nofile < _FEW_FILES:
            yield Finding(
                id="files-few",
                title="its programs may open few files",
                level="warning",
                seen=f"{facts.nofile}",
                where=name,
                remedy="raise nofile in /etc/security/limits.conf there",
            )


def judge_clocks(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield clocks that go apart: Ray bears it, tokens, certificates and merged logs do not."""
    for name in survey.offsets if len(survey.offsets) > 1 else ():
        skew = survey.skew(name)
        if abs(skew) >= _SKEW_S:
            way = "ahead of" if skew > 0 else "behind"
            yield Finding(
                id="clock-skew",
                title="its clock is not that of the other nodes",
                level="error" if abs(skew) >= _LARGE_SKEW_S else "warning",
                seen=f"{duration_text(abs(skew))} {way} them",
                where=name,
                remedy="set it there: timedatectl set-ntp true",
            )


def judge_paths(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield what a job reads that a node lacks, or has another copy of."""
    for number, path in enumerate(needs.paths):
        found = {name: facts.paths[number] for name, facts in survey.facts.items() if len(facts.paths) > number}
        for name, one in found.items():
            disk = survey.facts[name].disk
            if not one.there and (disk.there or not path.startswith(f"{disk.path}/")):  # else that is what is told
                yield Finding(
                    id="path-missing",
                    title="what the job reads is not there",
                    seen=one.said,
                    where=f"{name}: {path}",
                    remedy="copy it there, from a node that has it",
                )
        there = {name: one for name, one in found.items() if one.there}
        first = next(iter(there), "")
        for name, one in there.items():
            if one.sum != there[first].sum:
                yield Finding(
                    id="path-differs",
                    title=f"what the job reads is another copy than that of {first}",
                    seen=f"{one.files} files of {size_text(one.bytes)}, there {there[first].files} of "
                    f"{size_text(there[first].bytes)}",
                    where=f"{name}: {path}",
                    remedy=f"copy it anew from {first}",
                )
