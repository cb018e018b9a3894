"""One call at a time changes the clusters of a node; a second one is told who does."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlbox.amounts import duration_text
from rlbox.cluster.reach.fleet import Fleet
from rlbox.errors import LockHeld, RlboxError
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.system.identity import user_name


def maker() -> str:
    """Return who types this, as others are told it."""
    return f"{user_name()}@{socket.gethostname()}"


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
