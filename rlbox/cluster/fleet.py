"""All nodes of a cluster, asked at the same time, and the lock that one command has on them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from rlbox.amounts import duration_text
from rlbox.cluster.connection import PATIENCE_S, NodeConnection, UnreachableNode
from rlbox.cluster.nodes import NodeSpec, find_duplicate_machines
from rlbox.cluster.ssh_route import Starts
from rlbox.errors import LockHeld, RlboxError, SpecError
from rlbox.findings import Finding
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.system.identity import get_user_name

T = TypeVar("T")

_SHOWN_S = 5.0
"""A node that has not answered by then is named, and again each time as long."""


class Fleet:
    """The nodes of a cluster that are connected, in their order, and why the others are not."""

    def __init__(self, links: Mapping[str, NodeConnection], unreached: Sequence[Finding]) -> None:
        self.links, self.unreached = dict(links), tuple(unreached)

    def each(self, do: Callable[[NodeConnection], T]) -> dict[str, T]:
        """Return what each node gave, all done at once; the first error of the nodes is raised when all are through."""
        done, failed = self.tried(do)
        if failed:
            raise next(iter(failed.values()))
        return done

    def tried(self, do: Callable[[NodeConnection], T]) -> tuple[dict[str, T], dict[str, RlboxError]]:
        """Return what each node gave, and the errors of the others."""
        done: dict[str, T] = {}
        failed: dict[str, RlboxError] = {}
        for name, future in self._started(do).items():
            try:
                done[name] = future.result()
            except RlboxError as error:
                failed[name] = error
        return done, failed

    def _started(self, do: Callable[[NodeConnection], T]) -> dict[str, Future[T]]:
        with ThreadPoolExecutor(max(1, len(self.links))) as pool:
            return {name: pool.submit(do, link) for name, link in self.links.items()}

    def ask(self, do: str, timeout_s: float = 60.0, **args: Any) -> dict[str, dict[str, Any]]:
        """Ask every node the same."""
        return self.each(lambda link: link.ask(do, timeout_s=timeout_s, **args))

    def close(self) -> None:
        """End all connections."""
        self.tried(lambda link: link.close())


@contextmanager
def connected(wishes: Sequence[NodeSpec], say: Callable[[str], None]) -> Iterator[Fleet]:
    """Connect to all nodes at once and hold the connections while the block runs.

    Raises
    ------
    SpecError
        Two names are one machine.
    """
    starts = Starts()
    links = {options.name: NodeConnection(options, starts) for options in wishes}
    unreached: list[Finding] = []
    try:
        with ThreadPoolExecutor(len(links)) as pool:
            ways = {name: pool.submit(link.open) for name, link in links.items()}
            _wait(ways, say)
        for name, way in ways.items():
            try:
                way.result()
            except UnreachableNode as error:
                unreached.append(error.finding)
                del links[name]
        _refuse_same(links)
        yield Fleet(links, unreached)
    finally:
        Fleet(links, ()).close()


def _wait(ways: Mapping[str, Future[None]], say: Callable[[str], None]) -> None:
    """Wait for all, and say which are slow."""
    began = time.monotonic()
    while (left := wait(ways.values(), timeout=_SHOWN_S).not_done) and time.monotonic() - began < 4 * PATIENCE_S:
        slow = [name for name, way in ways.items() if way in left]
        say(f"waiting for {', '.join(slow[:8])}{' …' if len(slow) > 8 else ''}")


def _refuse_same(links: Mapping[str, NodeConnection]) -> None:
    for one, other in find_duplicate_machines((name, str(link.facts["identity"])) for name, link in links.items()):
        raise SpecError(
            _("nodes {one} and {other} are one machine").format(one=one, other=other),
            next_step=_("name each machine once, in --nodes or cluster.nodes"),
        )


def maker() -> str:
    """Return who types this, as others are told it."""
    return f"{get_user_name()}@{socket.gethostname()}"


@contextmanager
def held(fleet: Fleet, what: str) -> Iterator[None]:
    """Hold every node while the block runs; the hold goes with the connection, however that ends.

    The nodes are asked one after the other, in an order that is the same for everybody: so of two calls one wins.

    Raises
    ------
    LockHeld
        Another call changes clusters on a node; it is named.
    """
    who = {"who": maker(), "what": what, "since": time.time(), "at": os.getpid()}
    order = sorted(fleet.links.values(), key=lambda link: str(link.facts["identity"]))
    taken = []
    try:
        for link in order:
            told = link.ask("take", who=who)
            if not told["held"]:
                raise _held(link.name, told.get("holder", {}))
            taken.append(link)
        yield
    finally:
        for link in taken:
            try:
                link.ask("leave")
            except RlboxError:  # the hold went with the connection
                continue


def _held(node: str, holder: dict[str, Any]) -> LockHeld:
    name = str(holder.get("who") or f"process {holder.get('pid', '?')} of uid {holder.get('uid', '?')}")
    what = str(holder.get("what", "rlbox cluster"))
    since = holder.get("since")
    for_ = (
        _(" for {duration}").format(duration=duration_text(time.time() - float(since)))
        if isinstance(since, (int, float))
        else ""
    )
    at = whole_number(str(holder.get("at", "")))
    return LockHeld(
        _("{name} changes clusters on node {node}{value}: {what}{at}").format(
            name=name, node=node, value=for_, what=what, at=_(" (process {at} there)").format(at=at) if at else ""
        ),
        where=node,
        next_step=_("the same command again, once that has ended"),
    )
