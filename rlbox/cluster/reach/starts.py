"""How many connections are started at a time: an sshd drops those that are too many, without a word."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

from rlbox.errors import RlboxError
from rlbox.system.command import run_command
from rlbox.values import Command

AT_ONCE = 8
"""To one host, or through one jump host; an sshd takes 10 by default, and others start some as well."""

_CONFIG_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Route:
    """How ssh goes to a node: the `host` that its name stands for, and the first host on the way, empty for none."""

    host: str
    jump: str = ""

    @property
    def door(self) -> str:
        """The host that the connection is started to."""
        return self.jump or self.host


def route_to(name: str) -> Route:
    """Return what ssh's configuration says of a node; nothing is asked of any machine."""
    try:
        told = run_command(Command(argv=("ssh", "-G", "--", name), timeout_s=_CONFIG_S))
    except RlboxError:
        return Route(host=name)
    words = dict(line.split(" ", 1) for line in told.stdout.splitlines() if " " in line)
    host = words.get("hostname", name)
    jump = words.get("proxyjump", "none")
    if jump == "none":
        command = words.get("proxycommand", "none")
        jump = "" if command == "none" else command.replace(host, "%h")
    return Route(host=host, jump=jump.split(",")[0])


class Starts:
    """Who may start a connection now, by the host that it is started to."""

    def __init__(self) -> None:
        self._doors: dict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(AT_ONCE))
        self._lock = threading.Lock()

    def at(self, route: Route) -> threading.Semaphore:
        """Return what a start holds until it is through."""
        with self._lock:
            return self._doors[route.door]
