"""What ssh's errors mean, and what to do about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.values import Command


@dataclass(frozen=True, kw_only=True)
class _Rule:
    pattern: str
    id: str
    title: str
    remedy: str


_RULES = (
    _Rule(
        pattern=r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed",
        id="host-key-changed",
        title="its host key is another than the one that is known: somebody may stand between",
        remedy="ask whoever runs it; if it was installed anew: ssh-keygen -R {host}, then `ssh {name}` once",
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
_CONFIG_S = 20.0
_BEHIND = "open failed: connect failed"
"""What a jump host says that is reached itself, and does not reach the node."""
_JUMP = re.compile(r"(?:connect to host (\S+) port|Could not resolve hostname (\S+?):|^(\S+?)(?:: |@))")


class SshRoute(NamedTuple):
    """The `host` that a name stands for, and the first `jump` host on the way to it, empty for none."""

    host: str
    jump: str


def read_ssh_route(host_alias: str) -> SshRoute:
    """Return what ssh's configuration says of a name; no machine is asked."""
    try:
        outcome = run_command(Command(argv=("ssh", "-G", "--", host_alias), timeout_s=_CONFIG_S))
    except RlboxError:
        return SshRoute(host_alias, "")
    settings = dict(line.split(" ", 1) for line in outcome.stdout.splitlines() if " " in line)
    host, jump = settings.get("hostname", host_alias), settings.get("proxyjump", "none")
    if jump == "none":
        command = settings.get("proxycommand", "none")
        jump = "" if command == "none" else command.replace(host, "%h")
    return SshRoute(host, jump.split(",")[0])


def explain_ssh_error(name: str, route: SshRoute, output: str) -> Finding:
    """Return why ssh did not reach `name`, by all that it wrote."""
    host, jump = route
    lines = [line.strip() for line in output.strip().splitlines() if line.strip(" @")]
    last = next((line for line in lines if _BEHIND in line), lines[-1] if lines else "ssh ended without a word")
    at_jump = _fails_at_jump(route, output)
    for rule in _RULES:
        match = re.search(rule.pattern, output)
        if match and not (at_jump and rule.id == "no-python"):
            line = next((line for line in lines if match.group() in line), last)
            remedy = rule.remedy.format(name=jump if at_jump else name, host=jump if at_jump else host)
            return _create_finding(rule.id, rule.title, name, line, jump if at_jump else "", remedy)
    remedy = f"make `ssh {jump if at_jump else name} true` work: is it on, is its network up, is its sshd there?"
    return _create_finding("unreachable", "it does not answer", name, last, jump if at_jump else "", remedy)


def _create_finding(id_: str, title: str, name: str, line: str, jump: str, remedy: str) -> Finding:
    if jump:
        title = _("jump host {jump}: {title}").format(jump=jump, title=title)
        return Finding(id=f"jump-{id_}", title=title, seen=line, where=name, remedy=remedy)
    return Finding(id=id_, title=title, seen=line, where=name, remedy=remedy)


def _fails_at_jump(route: SshRoute, output: str) -> bool:
    """Return whether it is the jump host that was not reached: ssh names it, or the way ended there."""
    if not route.jump or _BEHIND in output:
        return False
    bare = route.jump.rpartition("@")[2].partition(":")[0]
    named = {part for match in _JUMP.findall(output) for part in match if part}
    if bare in named or f"[{bare}]" in named:
        return True
    return "UNKNOWN port 65535" in output and route.host not in named
