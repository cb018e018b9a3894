"""Which host a failed command could not reach, and what to write into a sources profile about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HOST = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+)"
# Messages that name the host themselves: curl, git, apt, wget, pip, ssh, Go's net, Node's dns, rlbox.
_NAMING = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"could not resolve host(?:name)?:? ['\"]?{_HOST}",
        rf"(?:could not resolve|temporary failure resolving|unable to resolve host address|failed to resolve)"
        rf" ['\"‘]{_HOST}",
        rf"failed to connect to {_HOST} port \d+",
        rf"could not connect to {_HOST}:\d+",
        rf"connecting to {_HOST}(?:\|[^|]*\|)?:\d+\.\.\. failed",
        rf"lookup {_HOST}(?: on \S+)?: (?:no such host|server misbehaving|i/o timeout|Temporary failure)",
        rf"cannot reach {_HOST}: ",
        rf"getaddrinfo (?:ENOTFOUND|EAI_AGAIN) {_HOST}",
    )
)
# Messages that do not: the address stands in the same line or shortly before.
_NAMELESS = re.compile(
    r"failed to lookup address information|dns error|temporary failure in name resolution|name or service not known"
    r"|nodename nor servname provided|no address associated with hostname|connection refused|no route to host"
    r"|network is unreachable|tcp connect error",
    re.IGNORECASE,
)
_ADDRESS = re.compile(rf"(?:https?://(?:[^/@\s]*@)?|host=['\"]){_HOST}")
_LINES_BEFORE = 25  # a Python traceback stands between


def unreached_host(lines: Sequence[str]) -> str:
    """Return the host that the last failure in a command's output is about, empty when it is about none."""
    for number in range(len(lines) - 1, -1, -1):
        for pattern in _NAMING:
            if found := pattern.search(lines[number]):
                return found["host"].lower()
        if _NAMELESS.search(lines[number]):
            for line in reversed(lines[max(0, number - _LINES_BEFORE) : number + 1]):
                if near := list(_ADDRESS.finditer(line)):
                    return near[-1]["host"].lower()
    return ""


def rule_to_add(host: str, profile: str) -> str:
    """Return what to write, and where, so that the host is declared or replaced by a mirror."""
    return (
        f"{host} is not reached from here. If it may be, let the network through and declare it in"
        f" sources/{profile}.toml:\n"
        "           [[egress]]\n"
        f'           host = "{host}"\n'
        '           why = "…"\n'
        "         else name a mirror there that stands for it:\n"
        "           [[rule]]\n"
        '           kind = "http"\n'
        '           protocol = "host"\n'
        f'           match = "https://{host}"\n'
        '           url = "https://MIRROR"'
    )
