"""Settings of this machine for whatever speaks with the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SiteFacts:
    """The package settings of this machine (pip's and uv's configuration, environment), as probed.

    `find_links` are local folders with the wheels in them; `ca_bundle` is empty when the system's own is used.
    """

    find_links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    ca_bundle: str = ""
    proxies: Mapping[str, str] = field(default_factory=dict)
