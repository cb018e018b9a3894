"""What ssh's errors mean, and what to do about them."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlbox.findings import Finding


class _Rule(NamedTuple):
    pattern: str
    id: str
    title: str
    remedy: str


_RULES = (
    _Rule(
        pattern=r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed",
        id="host-key-changed",
        title="its host key is another than the one that is known: somebody may stand between",
        remedy="ask whoever runs it; if it was installed anew: `ssh {name}` says how to remove its old key",
    ),
    _Rule(
        pattern=r"Host key verification failed|No \S+ host key is known",
        id="host-key-unknown",
        title="its host key is not known here",
        remedy="type `ssh {name}` once, compare the key, and take it",
    ),
    _Rule(
        pattern=r"Could not resolve hostname|Name or service not known|nodename nor servname",
        id="host-unknown",
        title="there is no host of that name",
        remedy="correct the name, or give it a Host entry in ~/.ssh/config",
    ),
    _Rule(
        pattern=r"Permission denied|Too many authentication failures|no mutual signature|passphrase",
        id="login-refused",
        title="ssh would ask for a password: no key of yours is taken there",
        remedy="ssh-copy-id {name}, or load the key with ssh-add",
    ),
    _Rule(
        pattern=r"python3: (command )?not found|python3: No such file|Unknown command: python3",
        id="no-python",
        title="it has no python3",
        remedy="install Python 3.6 or newer there: apt-get install python3",
    ),
    _Rule(
        pattern=r"administratively prohibited|streamlocal|forwarding (is )?disabled",
        id="no-forwarding",
        title="its sshd forwards no sockets",
        remedy="AllowStreamLocalForwarding yes in its sshd_config",
    ),
)
_BEHIND = "open failed: connect failed"
"""What a jump host says that is reached itself, and does not reach the node."""


def explain_ssh_error(name: str, output: str) -> Finding:
    """Return why ssh did not reach `name`, by all that it wrote; a jump host that failed is named in its line."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip(" @")]
    for rule in _RULES:
        if match := re.search(rule.pattern, output):
            line = next((line for line in lines if match.group() in line), lines[-1])
            return Finding(id=rule.id, title=rule.title, seen=line, where=name, remedy=rule.remedy.format(name=name))
    last = next((line for line in lines if _BEHIND in line), lines[-1] if lines else "ssh ended without a word")
    remedy = f"make `ssh {name} true` work: is it on, is its network up, is its sshd there?"
    return Finding(id="unreachable", title="it does not answer", seen=last, where=name, remedy=remedy)
