"""All nodes of a cluster, called at the same time, and the lock that one command has on them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from rlbox.amounts import duration_text
from rlbox.cluster.connection import Node, NodeStream, UnreachableNode
from rlbox.cluster.nodes import NodeSpec, find_duplicate_machines
from rlbox.errors import LockHeld, NodeError, RlboxError, SpecError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.identity import get_user_name

T = TypeVar("T")

_REPORT_S = 5.0
_ALIVE_S = 10.0
"""The node's script takes a caller for gone that says nothing for 90 s, as after a power cut."""


class NodePool:
    """The nodes that are connected, in their order, and why the others are not."""

    def __init__(self, nodes: Mapping[str, Node], unreached: Sequence[Finding] = ()) -> None:
        self.nodes, self.unreached = dict(nodes), tuple(unreached)

    def select(self, names: Sequence[str]) -> NodePool:
        return NodePool({name: self.nodes[name] for name in names if name in self.nodes})

    def map(self, function: Callable[[Node], T]) -> dict[str, T]:
        """Return what each node gave; the first error is raised when all are through."""
        results, errors = self.try_map(function)
        if errors:
            raise next(iter(errors.values()))
        return results

    def try_map(self, function: Callable[[Node], T]) -> tuple[dict[str, T], dict[str, RlboxError]]:
        """Return what each node gave, and the errors of the others."""
        results: dict[str, T] = {}
        errors: dict[str, RlboxError] = {}
        with ThreadPoolExecutor(max(1, len(self.nodes))) as pool:
            futures = {name: pool.submit(function, node) for name, node in self.nodes.items()}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except RlboxError as error:
                errors[name] = error
        return results, errors

    def format_unreached(self) -> list[str]:
        return [f"{finding.where}: {finding.title}: {finding.seen}" for finding in self.unreached]


@contextmanager
def connect_nodes(specs: Sequence[NodeSpec], say: Callable[[str], None]) -> Iterator[NodePool]:
    """Connect to all nodes at once, and hold the connections while the block runs; two names of one are refused."""
    nodes = {spec.name: Node(spec) for spec in specs}
    unreached: list[Finding] = []
    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            futures = {name: pool.submit(node.open) for name, node in nodes.items()}
            _report_slow(futures, say)
        for name, future in futures.items():
            try:
                future.result()
            except UnreachableNode as error:
                unreached.append(error.finding)
                del nodes[name]
        for first, second in find_duplicate_machines((n, str(node.machine["identity"])) for n, node in nodes.items()):
            raise SpecError(
                _("nodes {one} and {other} are one machine").format(one=first, other=second),
                next_step=_("name each machine once, in --nodes or cluster.nodes"),
            )
        yield NodePool(nodes, unreached)
    finally:
        for node in nodes.values():
            node.close()


def _report_slow(futures: Mapping[str, Future[None]], say: Callable[[str], None]) -> None:
    while pending := wait(futures.values(), timeout=_REPORT_S).not_done:
        slow = [name for name, future in futures.items() if future in pending]
        say(f"waiting for {', '.join(slow[:8])}{' …' if len(slow) > 8 else ''}")


def get_maker() -> str:
    """Return the current user as `user@host`."""
    return f"{get_user_name()}@{socket.gethostname()}"


class NodeLocks:
    """The locks of nodes, each a stream whose end lets go of it, and undoes what was guarded and not committed."""

    def __init__(self) -> None:
        self.streams: dict[str, NodeStream] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._keep_alive, name="locks", daemon=True).start()

    def _keep_alive(self) -> None:
        while not self._closed.wait(_ALIVE_S):
            for stream in list(self.streams.values()):
                stream.send({})

    def send(self, name: str, message: dict[str, Any]) -> None:
        """Send a message to the holder on a node and wait until it is done; `NodeError` where the connection broke."""
        self.streams[name].send(message)
        self.streams[name].next()

    def close(self) -> None:
        """Let go of all: the scripts there end by themselves."""
        self._closed.set()
        for stream in self.streams.values():
            stream.end_input()
            with contextlib.suppress(NodeError):
                list(stream)


@contextmanager
def lock_nodes(pool: NodePool, command: str) -> Iterator[NodeLocks]:
    """Hold the lock of every node while the block runs: one after the other, in the same order for everybody.

    Raises
    ------
    LockHeld
        Another call changes clusters on a node; it is named.
    """
    who = {"who": get_maker(), "what": command, "since": time.time(), "at": os.getpid()}
    locks = NodeLocks()
    try:
        for node in sorted(pool.nodes.values(), key=lambda node: str(node.machine["identity"])):
            stream = node.stream("lock", who=who)
            row = stream.next()
            if not row["held"]:
                stream.close()
                raise _create_lock_error(node.name, row["holder"])
            locks.streams[node.name] = stream
        yield locks
    finally:
        locks.close()


def _create_lock_error(node: str, holder: Mapping[str, Any]) -> LockHeld:
    since, pid = holder.get("since"), holder.get("at")
    span = (
        _(" for {duration}").format(duration=duration_text(time.time() - float(since)))
        if isinstance(since, (int, float))
        else ""
    )
    return LockHeld(
        _("{name} changes clusters on node {node}{value}: {what}{at}").format(
            name=holder.get("who", _("somebody")),
            node=node,
            value=span,
            what=holder.get("what", "rlbox cluster"),
            at=_(" (process {at} there)").format(at=pid) if isinstance(pid, int) else "",
        ),
        where=node,
        next_step=_("the same command again, once that has ended"),
    )
