"""Ray's dashboard on this machine's loopback: what connects there is led to the head over its one connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from rlbox.app import App
from rlbox.cluster.act.reach.link import Link
from rlbox.cluster.act.story import story_of
from rlbox.cluster.wish import ClusterWish
from rlbox.errors import NodeError

_LOOPBACK = "127.0.0.1"
_BLOCK = 1 << 16


def lead_dashboard(app: App, wish: ClusterWish, port: int, ready: Callable[[str], None]) -> None:
    """Lead connections on to the dashboard until Ctrl-C, or the connection breaks; `ready` is told the address.

    Raises
    ------
    NodeError
        The cluster does not stand, the port is taken here, or the connection broke.
    """
    with story_of(app, wish) as story:
        plan = story.require_standing(story.survey()).plan
        head, goal = story.fleet.links[plan.head.name], plan.ports.of("dashboard")
        try:
            server = socket.create_server((_LOOPBACK, port))
        except OSError as error:
            raise NodeError(f"port {port} is taken on this machine", next_step="--port N, another one") from error
        with server:
            server.settimeout(1.0)
            ready(f"http://{_LOOPBACK}:{server.getsockname()[1]}")
            while not head.lost:
                with contextlib.suppress(TimeoutError):
                    caller, _ = server.accept()
                    threading.Thread(target=_lead, args=(caller, head, goal), daemon=True).start()
        raise head.gone()


def _lead(caller: socket.socket, head: Link, port: int) -> None:
    try:
        goal = head.dial(_LOOPBACK, port)
    except OSError:
        caller.close()
        return
    caller.settimeout(None)
    back = threading.Thread(target=_pump, args=(goal, caller), daemon=True)
    back.start()
    _pump(caller, goal)
    back.join()
    caller.close()
    goal.close()


def _pump(source: socket.socket, goal: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            goal.sendall(block)
    with contextlib.suppress(OSError):
        goal.shutdown(socket.SHUT_WR)
