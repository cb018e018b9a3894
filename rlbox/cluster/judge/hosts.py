"""Judge each node by itself: engine, data disk, memory, limits, clock."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.amounts import GIB, duration_text, size_text
from rlbox.cluster.facts import NodeFacts
from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.survey import Survey
from rlbox.findings import Finding
from rlbox.i18n import _

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


def judge_disks(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
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


def judge_size(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
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


def judge_clocks(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
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


def judge_paths(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
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
