"""How a node runs Ray: in a container of its engine, or as processes of its user. Nothing else here knows both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlbox.cluster.plan import ClusterMember, ClusterPlan
from rlbox.cluster.ray import container_name, member_container, member_processes, place_program, python_of
from rlbox.cluster.reach.link import ASK_S, NodeLink
from rlbox.engine.gpu_access import NO_GPUS, GpuAccess, choose_gpu_access, parse_gpus, probe_gpu_support

if TYPE_CHECKING:
    from rlbox.engine.container import ContainerDefaults


@dataclass(frozen=True, kw_only=True)
class Started:
    """What is to be started: the plan, limits of its containers, and by node the image as its engine calls it.

    Of a node without an engine `images` has the checksum of the lock that its place was brought to.
    """

    plan: ClusterPlan
    limits: ContainerDefaults
    images: Mapping[str, str]
    callers: Mapping[str, str]


class RayCarrier(Protocol):
    """What has the Ray of one node."""

    def start(self, started: Started, call: str) -> None:
        """Start it; `call` names what is undone as a whole when it is cut."""

    def execute(self, words: tuple[str, ...]) -> Iterator[str]:
        """Run the stack's interpreter with `words` beside it; yield the lines that it prints."""

    def output(self, life: str, lines: int) -> str:
        """Return the last lines that a life of it wrote."""

    def disk(self, mount: str) -> str:
        """Return where its programs see the node's data disk, which containers mount at `mount`."""


@dataclass(frozen=True, kw_only=True)
class InContainer:
    """Ray in a container of the node's engine."""

    link: NodeLink
    plan: ClusterPlan
    member: ClusterMember

    def start(self, started: Started, call: str) -> None:
        """As promised; with the GPUs that the node gives."""
        container = member_container(
            self.plan,
            self.member,
            started.limits,
            image=started.images[self.link.name],
            caller=started.callers[self.link.name],
            call=call,
            gpus=self._gpus(),
        )
        self.link.engine().start(container)

    def _gpus(self) -> GpuAccess:
        if not self.member.gpus:
            return NO_GPUS
        offer = probe_gpu_support(self.link.engine().info(), self.link.name, here=self.link.wish.local)
        return choose_gpu_access(parse_gpus(str(self.member.gpus), self.member.gpus), offer)

    def execute(self, words: tuple[str, ...]) -> Iterator[str]:
        """As promised."""
        return self.link.engine().execute(container_name(self.plan), (python_of(self.member), *words))

    def output(self, life: str, lines: int) -> str:
        """As promised."""
        return self.link.engine().read_log_tail(life, lines)

    def disk(self, mount: str) -> str:
        """As promised."""
        return mount


@dataclass(frozen=True, kw_only=True)
class AsProcesses:
    """Ray as processes of the node's user, in the place that the target was brought to there."""

    link: NodeLink
    plan: ClusterPlan
    member: ClusterMember

    def start(self, started: Started, call: str) -> None:
        """As promised."""
        lock = started.images[self.link.name]
        self.link.ask("start-here", **member_processes(self.plan, self.member, lock=lock, call=call))

    def execute(self, words: tuple[str, ...]) -> Iterator[str]:
        """As promised."""
        program = place_program(self.plan, self.member, (python_of(self.member), *words))
        for part in self.link.start("execute-here", **program):
            yield str(part["line"])

    def output(self, life: str, lines: int) -> str:
        """As promised."""
        return str(self.link.ask("output-here", container=life, lines=lines)["text"])

    def disk(self, mount: str) -> str:
        """As promised."""
        return self.member.data


def carrier_of(link: NodeLink, plan: ClusterPlan, member: ClusterMember) -> RayCarrier:
    """Return what has, or is to have, the Ray of a node."""
    return (AsProcesses if member.here else InContainer)(link=link, plan=plan, member=member)


def lives_of(link: NodeLink, plan: ClusterPlan, timeout_s: float = ASK_S) -> list[dict[str, Any]]:
    """Return what a node tells of its lives of Ray, as rows; of a node without an engine that is not asked for it."""
    member = plan.member(link.name)
    here = bool(member and member.here)
    return list(link.ask("containers", timeout_s=timeout_s, here=here)["containers"])
