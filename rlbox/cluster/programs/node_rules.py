"""Rules for a node's network: ports of a cluster that its nodes alone may connect to; one table, or one chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlbox.cluster.programs.node_facts import rights
from rlbox.cluster.programs.node_run import run, tried
from rlbox.cluster.programs.node_wire import NodeFailed

if TYPE_CHECKING:
    from rlbox.cluster.programs.node_wire import Row

_RUN_S = 20.0


def close_ports(name: str, ports: list[list[int]], sources: list[str]) -> Row:
    """Let only `sources`, and this node itself, connect to the port ranges; what was there under this name goes."""
    own = rights()
    if not own["tool"]:
        raise NodeFailed("no rules can be made here", "rights")
    if own["tool"].endswith("nft"):
        _run([*own["before"], own["tool"], "-f", "-"], _table(name, ports, sources))
    else:
        open_ports(name)
        for tool in (own["tool"], f"{own['tool'][: -len('iptables')]}ip6tables"):
            own_sources = [one for one in sources if (":" in one) == tool.endswith("ip6tables")]
            for words in _chain(name, ports, own_sources):
                _run([*own["before"], tool, "-w", *words])
    return {"tool": own["tool"]}


def _table(name: str, ports: list[list[int]], sources: list[str]) -> str:
    span = ", ".join(f"{first}-{last}" for first, last in ports)
    four = ", ".join(one for one in sources if ":" not in one)
    six = ", ".join(one for one in sources if ":" in one)
    rows = [f"tcp dport != {{ {span} }} accept", 'iif "lo" accept']
    rows += [f"ip saddr {{ {four} }} accept"] if four else []
    rows += [f"ip6 saddr {{ {six} }} accept"] if six else []
    body = "\n".join([*rows, "reject with tcp reset"])
    new = f"add table inet {name}\ndelete table inet {name}\n"  # in one go: no moment without
    return f"{new}table inet {name} {{\nchain input {{\ntype filter hook input priority -10; policy accept;\n" + (
        f"meta l4proto != tcp accept\n{body}\n}}\n}}\n"
    )


def _chain(name: str, ports: list[list[int]], sources: list[str]) -> list[list[str]]:
    rows = [["-N", name], ["-A", name, "-i", "lo", "-j", "RETURN"]]
    rows += [["-A", name, "-s", one, "-j", "RETURN"] for one in sources]
    rows += [["-A", name, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"]]
    return rows + [["-I", "INPUT", "-p", "tcp", "--dport", f"{a}:{b}", "-j", name] for a, b in ports]


def open_ports(name: str) -> Row:
    """Take the rules of a name away; return whether there were some."""
    own = rights()
    if not own["tool"]:
        return {"gone": False}
    if own["tool"].endswith("nft"):
        return {"gone": _tried([*own["before"], own["tool"], "delete", "table", "inet", name])}
    gone = False
    for tool in (own["tool"], f"{own['tool'][: -len('iptables')]}ip6tables"):
        for row in _rows([*own["before"], tool, "-w", "-S", "INPUT"]):
            if row[-2:] == ["-j", name]:
                _tried([*own["before"], tool, "-w", "-D", *row[1:]])
        gone = _tried([*own["before"], tool, "-w", "-F", name]) or gone
        _tried([*own["before"], tool, "-w", "-X", name])
    return {"gone": gone}


def _rows(words: list[str]) -> list[list[str]]:
    try:
        return [line.split() for line in _run(words).splitlines()]
    except NodeFailed:
        return []


def _tried(words: list[str]) -> bool:
    return tried(words, _RUN_S) is not None


def _run(words: list[str], given: str = "") -> str:
    return run(words, _RUN_S, given)
