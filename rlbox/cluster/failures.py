"""Find out what happened to nodes of a cluster that are not as they should be, and which of them failed first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from rlbox.amounts import size_text
from rlbox.cluster.facts import ClusterContainer, NodeDisk
from rlbox.cluster.survey import Way
from rlbox.findings import Finding
from rlbox.i18n import _

_KILLED = 137
_PART_KILLED = "-9"
_FULL = 0.01
"""Share of a disk that is left when it counts as full."""


@dataclass(frozen=True, kw_only=True)
class MemberFacts:
    """A node of a cluster as it was found.

    `said` is why this machine does not reach it, empty where it does; `ways` are what the others found when they tried
    then. `lost` is what Ray lacks of it, empty where it has it or nobody could ask. `restarted` says that the
    machine was started after the cluster was, `here` that its Ray is processes; `offset` are the seconds that its clock
    is ahead of this machine's.
    """

    name: str
    container: ClusterContainer | None = None
    said: str = ""
    ways: tuple[Way, ...] = ()
    lost: str = ""
    disk: NodeDisk | None = None
    restarted: bool = False
    offset: float = 0.0
    here: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What happened to a node: `since` in seconds since 1970, None where nothing tells; `follows` another's end."""

    node: str
    id: str
    title: str
    seen: str
    since: float | None = None
    follows: bool = False

    def finding(self, remedy: str, *, first: bool) -> Finding:
        """Return it as a finding; of several the first says so."""
        at = "" if self.since is None else f"since {datetime.fromtimestamp(self.since, timezone.utc):%H:%M:%S} UTC"
        seen = ", ".join(filter(None, (self.seen, at, "it failed first" if first else "")))
        return Finding(id=self.id, title=self.title, seen=seen, where=self.node, remedy=remedy)


def find_failures(members: Iterable[MemberFacts]) -> tuple[Failure, ...]:
    """Return what happened, the first first: what has a cause of its own before what ends when others do, then by time.

    A machine that does not answer has no time of its own; it stands before what ended after it without a cause.
    """
    return sort_failures(failure for member in members if (failure := _failure(member)))


def sort_failures(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures, the first first."""
    return tuple(sorted(failures, key=lambda one: (one.follows, one.since or 0.0)))


def _failure(member: MemberFacts) -> Failure | None:
    if member.said:
        return _unreached(member)
    container = member.container
    if container is None:
        gone = _("its Ray is gone, and the record of it") if member.here else _("its container was removed")
        return Failure(node=member.name, id="container-gone", title=gone, seen="")
    if not container.going:
        return _ended(member, container)
    if _is_full(member.disk):
        return Failure(node=member.name, id="disk-full", title=_("its data disk is full"), seen=_room(member.disk))
    if member.lost:
        title = _("its container runs, and Ray does not have it: its way to the head is cut, or it hangs")
        if member.here:
            title = _("its processes run, and Ray does not have it: its way to the head is cut, or it hangs")
        return Failure(node=member.name, id="cut-off", title=title, seen=member.lost, follows=True)
    return None


def _unreached(member: MemberFacts) -> Failure:
    """Return whether it is our connection, or the machine: others have tried, and one that refuses is there."""
    there = [way for way in member.ways if not way.said or "refused" in way.said]
    if there:
        return Failure(
            node=member.name,
            id="connection-cut",
            title=_("this machine does not reach it, {source} does: the cluster lives on").format(
                source=there[0].source
            ),
            seen=member.said,
            follows=True,
        )
    if member.ways:
        title = _("neither this machine nor the other nodes reach it: it is off, or its cable is cut")
        return Failure(node=member.name, id="host-gone", title=title, seen=member.said)
    return Failure(node=member.name, id="host-unknown", title=_("this machine does not reach it"), seen=member.said)


def _ended(member: MemberFacts, container: ClusterContainer) -> Failure:
    """Return why a container has ended, by what its engine, its machine and Ray say."""
    killed = "its Ray was killed" if container.here else "its container was killed"
    ended = "its Ray ended" if container.here else "Ray ended in its container"
    part, __, code = container.said.partition(" ")
    rows = (
        (container.oom, "out-of-memory", "its container ran out of memory", ""),
        (member.restarted, "host-restarted", "its machine was started anew: a restart, or its power was cut", ""),
        (_is_full(member.disk), "disk-full", "its data disk is full", _room(member.disk)),
        (container.exit_code == _KILLED, "container-killed", killed, ""),
        (code == _PART_KILLED, "part-killed", "a part of its Ray was killed, by hand or for memory", part),
        (bool(member.lost), "cut-off", "Ray lost the way to it, and then it ended", member.lost),
    )
    id_, title, seen = next((row[1:] for row in rows if row[0]), ("ray-ended", ended, ""))
    return Failure(
        node=member.name,
        id=id_,
        title=title,
        seen=", ".join(filter(None, (f"exit code {container.exit_code}", seen))),
        since=_moment(container.finished, member.offset),
        follows=id_ in ("ray-ended", "cut-off"),
    )


def _is_full(disk: NodeDisk | None) -> bool:
    return disk is not None and disk.there and disk.free < _FULL * disk.size


def _room(disk: NodeDisk | None) -> str:
    return (
        _("{path}: {free} of {size} free").format(path=disk.path, free=size_text(disk.free), size=size_text(disk.size))
        if disk
        else ""
    )


def _moment(text: str, offset: float) -> float | None:
    """Return the time that an engine wrote, by this machine's clock; None where it is none."""
    try:
        at = datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    part = text[19:].lstrip(".").rstrip("Z")[:6]
    fraction = float(f"0.{part}") if part.isdigit() else 0.0
    return at + fraction - offset if at > 0 else None
