"""What a stage listens on beside what its job declares: strangers could speak with it, so it ends the stage.

On a network of the run's own every listener counts, whoever holds it; on another those of the run's processes. Loopback
is left alone: on the one nobody else reaches it, and on the other the machine's own users do.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from rlbox.job.plan import StagePlan
from rlbox.job.ports import allows
from rlbox.supervise.bench import StageContext, StageStopped
from rlbox.supervise.causes import undeclared_listener
from rlbox.supervise.stage_watch import StageWatch
from rlbox.system.ports import TcpSocket, list_tcp_sockets, read_ephemeral_ports

_EVERY_S, _SHARE = 1.0, 20
"""How often at most, and that looking takes a twentieth of the time at most."""

_OTHER = "other"


class PortAuditor:
    """Looks at the listeners of one stage from time to time; raises `StageStopped` at the first that is undeclared.

    Parameters
    ----------
    ours
        Inodes of what the supervisor itself listens on, now or later.
    """

    def __init__(self, context: StageContext, stage: StagePlan, watch: StageWatch, ours: Collection[int] = ()) -> None:
        self._context = context
        self._watch = watch
        self._stage = stage
        self._due = 0.0
        self._declared = _declared(stage)
        self._ours = ours
        self._known: set[int] = set()

    def check_periodically(self) -> None:
        """Look when the last time was a while ago."""
        if time.monotonic() > self._due:
            self.check()

    def check(self) -> None:
        """Look now."""
        begun = time.monotonic()
        new = [each for each in _listening() if each.inode not in self._known and each.inode not in self._ours]
        now = time.monotonic()
        self._due = now + max(_EVERY_S, _SHARE * (now - begun))
        if new:
            self._judge(new)
            self._known |= {each.inode for each in new}

    def _judge(self, new: Sequence[TcpSocket]) -> None:
        members = {process.pid: process.name for process in self._context.processes.members()}
        pids = {each.inode: each.holder(members) for each in new}
        parts, still, ports = self._context.processes.parts(), _listening(), read_ephemeral_ports()
        for each in new:
            pid = pids[each.inode]
            shared = self._context.plan.network == "host"  # with processes that are none of the run's
            if not pid and (shared or each not in still):
                continue
            part = next((name for name, found in parts.items() if pid in found), _OTHER)
            if not allows(self._declared.get(part, self._declared[_OTHER]), each.port, ports):
                holder = f"{members[pid]} (pid {pid})" if pid else "a process that cannot be seen"
                self._watch.gate.refuse(self._watch.gate.facts.listens, f"{holder} listens on {each.local}")
                raise StageStopped(undeclared_listener(self._stage, part, holder, each.local, each.port))


def _listening() -> list[TcpSocket]:
    """Return what waits for connections of others than this machine."""
    return [each for each in list_tcp_sockets() if each.listens and not each.loopback]


def _declared(stage: StagePlan) -> Mapping[str, tuple[str, ...]]:
    """Return where each part of a stage may listen; a Ray head carries the command out, orphans are anybody's."""
    declared = {service.name: service.listens for service in stage.services} | {"main": stage.listens}
    if stage.ray and stage.ray.service:  # else it is carried out elsewhere
        declared[stage.ray.service] += stage.listens
    return declared | {_OTHER: tuple(word for words in declared.values() for word in words)}
