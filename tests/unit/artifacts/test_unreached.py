"""Real output of tools that did not reach a host: the host is found, and the rule to add is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CASES

from rlbox.artifacts.egress import find_unreachable_host, suggest_mirror_rule

EXCERPTS = sorted((CASES / "artifacts/unreached").glob("*.txt"))


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda path: path.stem)
def test_the_host_is_found_in_output(excerpt: Path) -> None:
    assert find_unreachable_host(excerpt.read_text(encoding="utf-8").splitlines()) == "no-such.example"


@pytest.mark.parametrize(
    "text",
    [
        "curl: (6) Could not resolve host: no-such.example",
        "curl: (7) Failed to connect to no-such.example port 443 after 4 ms: Couldn't connect to server",
        "fatal: unable to access 'https://no-such.example/x.git/': Could not resolve host: no-such.example",
        "ssh: Could not resolve hostname no-such.example: Name or service not known",
        "  Could not connect to no-such.example:80 (192.0.2.1). - connect (111: Connection refused)",
        "E: Temporary failure resolving 'no-such.example'",
        "Error: getaddrinfo ENOTFOUND no-such.example",
        "  lan: cannot reach no-such.example: Name or service not known",
    ],
)
def test_the_host_is_found_in_a_line(text: str) -> None:
    assert find_unreachable_host(text.splitlines()) == "no-such.example"


def test_the_last_one_counts() -> None:
    lines = [
        "curl: (6) Could not resolve host: first.example",
        "retrying",
        "curl: (6) Could not resolve host: b.example",
    ]
    assert find_unreachable_host(lines) == "b.example"


@pytest.mark.parametrize(
    "text",
    [
        "error: the lock is stale",
        "ConnectionResetError: [Errno 104] Connection reset by peer\nhttps://a.example",
        "see https://docs.example/dns for help",
        "connection refused",
        "curl: (7) Failed to connect to 127.0.0.1x",
        "",
    ],
)
def test_near_misses(text: str) -> None:
    assert find_unreachable_host(text.splitlines()) == ""


def test_the_rule_to_add() -> None:
    assert (
        suggest_mirror_rule("no-such.example", "lan")
        == """no-such.example is not reached from here. \
If it may be, let the network through and declare it in sources/lan.toml:
           [[egress]]
           host = "no-such.example"
           why = "…"
         else name a mirror there that stands for it:
           [[rule]]
           kind = "http"
           protocol = "host"
           match = "https://no-such.example"
           url = "https://MIRROR\""""
    )
