"""The HTTP client of downloads: the site's CA bundle, the machine's proxies and netrc, limits on every wait."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING

from rlbox import __version__
from rlbox.machine.site import SiteFacts

if TYPE_CHECKING:
    import httpx

CONNECT_S = 10.0
SILENT_S = 10.0  # between two pieces of an answer
_CONNECTIONS = 64


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


def new_client(site: SiteFacts, *, silent_s: float = SILENT_S) -> httpx.Client:
    """Return an HTTP client for pages, with the machine's certificates and proxies, for one thread or many."""
    return http_client(site.ca_bundle, connections=_CONNECTIONS, stall_s=silent_s)


def explain(error: Exception) -> str:
    """Return what went wrong on the way, in the words of a person."""
    import httpx

    match error:
        case httpx.ConnectTimeout():
            return "does not take the connection"
        case httpx.TimeoutException():
            return "stalls: nothing came for too long"
        case httpx.RemoteProtocolError():
            return "breaks the connection off"
        case httpx.ConnectError() if error.request.url.host:
            return f"cannot reach {error.request.url.host}: {_plain(error)}"
        case _:
            return _plain(error)


def _plain(error: Exception) -> str:
    """Return the error's text without the number that only C programs read."""
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
