"""What ssh says when it cannot reach a node, and what that means: a finding of that node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlbox.findings import Finding
from rlbox.i18n import _

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
