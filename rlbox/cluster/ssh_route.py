"""How ssh reaches a node, how many connections start at a time, and what its errors mean."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from dataclasses import dataclass

from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.values import Command

BUSY = re.compile(
    r"Connection reset by peer|Connection closed by remote host|kex_exchange_identification|Exceeded MaxStartups", re.I
)
"""What an sshd says, or does not, that has more starts to deal with than it takes: it is asked again."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    sign: str
    id: str
    title: str
    remedy: str


_ROWS = (
    _Row(
        sign=r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed",
        id="host-key-changed",
        title="its host key is another than the one that is known: somebody may stand between",
        remedy="ask whoever runs it; if it was installed anew: ssh-keygen -R {host}, then `ssh {name}` once",
    ),
    _Row(
        sign=r"Host key verification failed|No \S+ host key is known",
        id="host-key-unknown",
        title="its host key is not known here",
        remedy="type `ssh {name}` once, compare the key, and take it",
    ),
    _Row(
        sign=r"Could not resolve hostname|Name or service not known|nodename nor servname",
        id="host-unknown",
        title="there is no host of that name",
        remedy="correct the name, or give it a Host entry in ~/.ssh/config",
    ),
    _Row(
        sign=r"Permission denied|Too many authentication failures|no mutual signature|passphrase",
        id="login-refused",
        title="ssh would ask for a password: no key of yours is taken there",
        remedy="ssh-copy-id {name}, or load the key with ssh-add",
    ),
    _Row(
        sign=r"python3: (command )?not found|python3: No such file|Unknown command: python3",
        id="no-python",
        title="it has no python3",
        remedy="install Python 3.6 or newer there: apt-get install python3",
    ),
    _Row(
        sign=r"administratively prohibited|streamlocal|forwarding (is )?disabled",
        id="no-forwarding",
        title="its sshd forwards no sockets",
        remedy="AllowStreamLocalForwarding yes in its sshd_config",
    ),
)
_BEHIND = "open failed: connect failed"
"""What a jump host says that is reached itself, and does not reach the node."""
_JUMP = re.compile(r"(?:connect to host (\S+) port|Could not resolve hostname (\S+?):|^(\S+?)(?:: |@))")


def explain_ssh(name: str, host: str, jump: str, words: str) -> Finding:
    """Return the finding for a node that ssh did not reach.

    Parameters
    ----------
    host
        What ssh makes of the name; `jump` the host that it goes through first, empty for none.
    words
        All that ssh wrote.
    """
    lines = [line.strip() for line in words.strip().splitlines() if line.strip(" @")]
    last = next((line for line in lines if _BEHIND in line), lines[-1] if lines else "ssh ended without a word")
    through = _fails_at_jump(host, jump, words)
    for row in _ROWS:
        if (found := re.search(row.sign, words)) and not (through and row.id == "no-python"):
            line = next((line for line in lines if found.group() in line), last)
            where = jump if through else name
            remedy = row.remedy.format(name=where, host=jump if through else host)
            return _finding(row.id, row.title, name, line, through, jump, remedy)
    remedy = f"make `ssh {jump if through else name} true` work: is it on, is its network up, is its sshd there?"
    return _finding("unreachable", "it does not answer", name, last, through, jump, remedy)


def _finding(id_: str, title: str, name: str, line: str, through: bool, jump: str, remedy: str) -> Finding:
    if through:
        title = _("jump host {jump}: {title}").format(jump=jump, title=title)
        return Finding(id=f"jump-{id_}", title=title, seen=line, where=name, remedy=remedy)
    return Finding(id=id_, title=title, seen=line, where=name, remedy=remedy)


def _fails_at_jump(host: str, jump: str, words: str) -> bool:
    """Return whether it is the jump host that could not be reached: ssh names it, or the way ended at its end."""
    if not jump or _BEHIND in words:
        return False
    bare = jump.rpartition("@")[2].partition(":")[0]
    named = {part for found in _JUMP.findall(words) for part in found if part}
    if bare in named or f"[{bare}]" in named:
        return True
    return "UNKNOWN port 65535" in words and host not in named


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
