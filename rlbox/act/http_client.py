"""The HTTP client of downloads: the site's CA bundle, the machine's proxies and netrc, limits on every wait."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from rlbox import __version__

if TYPE_CHECKING:
    import httpx

CONNECT_S = 10.0


def http_client(ca_bundle: str, *, connections: int, stall_s: float) -> httpx.Client:
    """Return a client for `connections` requests at once that waits at most `stall_s` for the next byte.

    With an empty `ca_bundle` both the system's certificates and those that come with httpx count.
    """
    import certifi
    import httpx

    context = ssl.create_default_context(cafile=ca_bundle or certifi.where())
    if not ca_bundle:
        context.load_default_certs()
    return httpx.Client(
        verify=context,
        follow_redirects=True,
        timeout=httpx.Timeout(stall_s, connect=min(CONNECT_S, stall_s), pool=None),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": f"rlbox/{__version__}"},
    )
