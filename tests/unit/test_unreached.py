"""Real output of tools that did not reach a host: the host is found, and the rule to add is said."""

from __future__ import annotations

import pytest

from rlbox.plan.unreached import rule_to_add, unreached_host

UV = """
error: Request failed after 3 retries in 4.1s
  cause: Failed to fetch: https://no-such.example/simple/six/
  cause: error sending request for url (https://no-such.example/simple/six/)
  cause: client error (Connect)
  cause: dns error
  cause: error resolving DNS
  cause: failed to lookup address information: Name or service not known
"""
UV_OLD = """
error: Failed to fetch: `https://no-such.example/simple/six/`
  Caused by: Request failed after 3 retries
  Caused by: error sending request for url (https://no-such.example/simple/six/)
  Caused by: client error (Connect)
  Caused by: tcp connect error: Connection refused (os error 111)
"""
PIP = """
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/six/
ERROR: HTTPSConnectionPool(host='no-such.example', port=443): Max retries exceeded with url: /simple/six/ (Caused by NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -2] Name or service not known'))
"""
WGET = """
Resolving no-such.example (no-such.example)... failed: Name or service not known.
wget: unable to resolve host address ‘no-such.example’
"""
APT = """
Err:1 http://no-such.example/debian bookworm InRelease
  Could not resolve 'no-such.example'
W: Failed to fetch http://no-such.example/debian/dists/bookworm/InRelease  Could not resolve 'no-such.example'
W: Some index files failed to download. They have been ignored, or old ones used instead.
"""
BUILDX = """
#2 ERROR: failed to do request: Head "https://no-such.example/v2/x/manifests/1": dial tcp: lookup no-such.example on 192.0.2.53:53: no such host
--------------------
   1 | >>> FROM no-such.example/x:1
--------------------
ERROR: failed to solve: no-such.example/x:1: failed to resolve source metadata for no-such.example/x:1: failed to do request: Head "https://no-such.example/v2/x/manifests/1": dial tcp: lookup no-such.example on 192.0.2.53:53: no such host
"""
FLASH_ATTN = """
#14 41.22 Guessing wheel URL:  https://no-such.example/Dao-AILab/flash-attention/releases/download/v2.8.3/x.whl
#14 41.30 Traceback (most recent call last):
#14 41.30   File "/usr/lib/python3.12/urllib/request.py", line 1351, in do_open
#14 41.30 urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>
"""


@pytest.mark.parametrize(
    "text",
    [
        UV,
        UV_OLD,
        PIP,
        WGET,
        APT,
        BUILDX,
        FLASH_ATTN,
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
def test_the_host_is_found(text: str) -> None:
    assert unreached_host(text.splitlines()) == "no-such.example"


def test_the_last_one_counts() -> None:
    lines = [
        "curl: (6) Could not resolve host: first.example",
        "retrying",
        "curl: (6) Could not resolve host: b.example",
    ]
    assert unreached_host(lines) == "b.example"


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
    assert unreached_host(text.splitlines()) == ""


def test_the_rule_to_add() -> None:
    assert (
        rule_to_add("no-such.example", "lan")
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
