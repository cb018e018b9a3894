"""All nodes of a cluster, called at the same time, and the lock that one command has on them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from rlbox.cluster.connection import Node, NodeStream, UnreachableNode
from rlbox.cluster.nodes import NodeSpec
from rlbox.errors import LockHeld, NodeError, RlboxError, SpecError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.identity import get_user_name

T = TypeVar("T")

_ALIVE_S = 10.0
"""The node's script takes a caller for gone that says nothing for 90 s, as after a power cut."""


class NodePool:
    """The nodes that are connected, in their order, and why the others are not."""

    def __init__(self, nodes: Mapping[str, Node], unreached: Sequence[Finding] = ()) -> None:
        self.nodes, self.unreached = dict(nodes), tuple(unreached)

    def select_skipping_unconnected(self, names: Sequence[str]) -> NodePool:
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
def connect_nodes(specs: Sequence[NodeSpec]) -> Iterator[NodePool]:
    """Connect to all nodes at once, and hold the connections while the block runs; two names of one are refused."""
    nodes = {spec.name: Node(spec) for spec in specs}
    unreached: list[Finding] = []
    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            futures = {name: pool.submit(node.connect_and_identify) for name, node in nodes.items()}
        for name, future in futures.items():
            try:
                future.result()
            except UnreachableNode as error:
                unreached.append(error.finding)
                del nodes[name]
        names: dict[str, str] = {}
        for name, node in nodes.items():
            first = names.setdefault(str(node.machine["identity"]), name)
            if first != name:
                raise SpecError(
                    _("nodes {one} and {other} are one machine").format(one=first, other=name),
                    next_step=_("name each machine once, in --nodes or cluster.nodes"),
                )
        yield NodePool(nodes, unreached)
    finally:
        for node in nodes.values():
            node.close()


def get_user_at_host() -> str:
    """Return the current user as `user@host`."""
    return f"{get_user_name()}@{socket.gethostname()}"


@contextmanager
def lock_nodes(pool: NodePool) -> Iterator[None]:
    """Hold the lock of every node while the block runs: one after the other, in the same order for everybody.

    Raises
    ------
    LockHeld
        Another call changes clusters on a node.
    """
    streams: list[NodeStream] = []
    closed = threading.Event()
    threading.Thread(target=_keep_alive, args=(streams, closed), name="locks", daemon=True).start()
    try:
        for node in sorted(pool.nodes.values(), key=lambda node: str(node.machine["identity"])):
            stream = node.stream("lock")
            streams.append(stream)
            if not stream.next()["held"]:
                raise LockHeld(
                    _("another call changes clusters on node {node}").format(node=node.name),
                    where=node.name,
                    next_step=_("the same command again, once that has ended"),
                )
        yield
    finally:
        closed.set()
        for stream in streams:
            stream.end_input()
            with contextlib.suppress(NodeError):
                list(stream)


def _keep_alive(streams: Sequence[NodeStream], closed: threading.Event) -> None:
    while not closed.wait(_ALIVE_S):
        for stream in tuple(streams):
            stream.send({})
