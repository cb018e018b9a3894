"""Find out what happened to nodes of a cluster that are not as they should be, and which of them failed first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from rlbox.amounts import decimal_size_text
from rlbox.cluster.context import ConnectionAttempt
from rlbox.cluster.node.facts import DiskFacts, RayInstance
from rlbox.findings import Finding
from rlbox.i18n import _

_KILLED = 137
_PART_KILLED = "-9"


class MemberFacts(NamedTuple):
    """A node of a cluster as it is now.

    `unreached` is why this machine does not reach it, empty where it does; `attempts` are what the other nodes found
    when they tried then. `missing` is what Ray lacks of it. `is_restarted`: the machine was started after its Ray was;
    `clock_offset_s` are the seconds that its clock is ahead of this machine's.
    """

    name: str
    instance: RayInstance | None = None
    unreached: str = ""
    attempts: Sequence[ConnectionAttempt] = ()
    missing: str = ""
    disk: DiskFacts | None = None
    is_restarted: bool = False
    clock_offset_s: float = 0.0


class Failure(NamedTuple):
    """What happened to a node: `since` in seconds since 1970, None where nothing tells.

    `is_consequence`: it is what happens to a node when another one ends.
    """

    node: str
    id: str
    title: str
    seen: str
    since: float | None = None
    is_consequence: bool = False


def find_member_failures(members: Iterable[MemberFacts]) -> list[Failure]:
    """Return what happened, the first first: what has a cause of its own before what ends when others do, then by time.

    A machine that does not answer has no time of its own; it stands before what ended after it without a cause.
    """
    return sort_failures(failure for member in members if (failure := _find_failure(member)))


def sort_failures(failures: Iterable[Failure]) -> list[Failure]:
    return sorted(failures, key=lambda one: (one.is_consequence, one.since or 0.0))


def format_failure_findings(
    failures: Sequence[Failure], remedy_by_node: Mapping[str, str], default_remedy: str
) -> tuple[Finding, ...]:
    """Return failures as findings; of several the first says so."""
    several = len(failures) > 1 and not all(one.is_consequence for one in failures)
    findings = []
    for number, one in enumerate(failures):
        at = "" if one.since is None else f"since {datetime.fromtimestamp(one.since, timezone.utc):%H:%M:%S} UTC"
        seen = ", ".join(filter(None, (one.seen, at, "it failed first" if several and number == 0 else "")))
        remedy = remedy_by_node.get(one.node, default_remedy)
        findings.append(Finding(id=one.id, title=one.title, seen=seen, where=one.node, remedy=remedy))
    return tuple(findings)


def _find_failure(member: MemberFacts) -> Failure | None:
    name, instance, disk = member.name, member.instance, member.disk
    if member.unreached:
        return _explain_silence(member)
    if instance is None:
        title = _("its container was removed, or the record of its processes")
        return Failure(name, "container-gone", title, "")
    if not instance.is_running:
        return _explain_end(member, instance)
    if disk and disk.is_full:
        return Failure(name, "disk-full", _("its data disk is full"), _format_space(disk))
    if member.missing:
        title = _("its Ray runs, and the head does not have it: its way to the head is cut, or it hangs")
        return Failure(name, "cut-off", title, member.missing, is_consequence=True)
    return None


def _explain_silence(member: MemberFacts) -> Failure:
    """Return whether it is our connection or the machine: others have tried, and one that refuses is there."""
    name, seen = member.name, member.unreached
    for attempt in member.attempts:
        if not attempt.error or "refused" in attempt.error:
            title = _("this machine does not reach it, {source} does: the cluster lives on")
            return Failure(name, "connection-cut", title.format(source=attempt.source), seen, is_consequence=True)
    if member.attempts:
        title = _("neither this machine nor the other nodes reach it: it is off, or its cable is cut")
        return Failure(name, "host-gone", title, seen)
    return Failure(name, "host-unknown", _("this machine does not reach it"), seen)


def _explain_end(member: MemberFacts, instance: RayInstance) -> Failure:
    """Return why Ray has ended, by what its engine, its machine and Ray say; the first rule that holds counts."""
    killed = _("its Ray was killed") if instance.is_inplace else _("its container was killed")
    ended = _("its Ray ended") if instance.is_inplace else _("Ray ended in its container")
    restarted = _("its machine was restarted: a reboot, or its power was cut")
    part, __, part_code = instance.first_ended_part.partition(" ")
    part_killed = _("a part of its Ray was killed, by hand or for memory")
    full = _format_space(member.disk) if member.disk and member.disk.is_full else ""
    rules = (
        (instance.oom, "out-of-memory", _("its container ran out of memory"), ""),
        (member.is_restarted, "host-restarted", restarted, ""),
        (bool(full), "disk-full", _("its data disk is full"), full),
        (instance.exit_code == _KILLED, "container-killed", killed, ""),
        (part_code == _PART_KILLED, "part-killed", part_killed, part),
        (bool(member.missing), "cut-off", _("Ray lost the way to it, and then it ended"), member.missing),
        (True, "ray-ended", ended, ""),
    )
    id_, title, seen = next(rule[1:] for rule in rules if rule[0])
    seen = ", ".join(filter(None, (f"exit code {instance.exit_code}", seen)))
    since = _parse_time(instance.finished, member.clock_offset_s)
    return Failure(member.name, id_, title, seen, since, is_consequence=id_ in ("ray-ended", "cut-off"))


def _format_space(disk: DiskFacts) -> str:
    return _("{path}: {free} of {size} free").format(
        path=disk.path, free=decimal_size_text(disk.free), size=decimal_size_text(disk.size)
    )


def _parse_time(text: str, clock_offset_s: float) -> float | None:
    """Return the time that an engine wrote, by this machine's clock; None where it is none."""
    seconds, __, part = text.rstrip("Z").partition(".")
    try:
        at = datetime.strptime(f"{seconds}.{part[:6] or 0} +0000", "%Y-%m-%dT%H:%M:%S.%f %z")
    except ValueError:
        return None
    return at.timestamp() - clock_offset_s if at.year > 1 else None
