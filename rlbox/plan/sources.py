"""Where bytes come from: the machine's own package settings, turned into what a resolver or a build step reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TORCH_WHEELS = "https://download.pytorch.org/whl"
_LOCAL_VERSION = re.compile(r"%2B", re.IGNORECASE)


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


@dataclass(frozen=True, kw_only=True)
class TorchGroup:
    """Requirements (`name==version`) that come from one channel of the torch wheel index."""

    packages: tuple[str, ...]
    channel: str


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """Environment for pip and uv, and the local wheels that stand for a remote index (absolute paths)."""

    env: Mapping[str, str]
    wheels: tuple[str, ...]


def plan_sources(groups: Sequence[TorchGroup], site: SiteFacts) -> SourcePlan:
    """Return where Python packages come from on this machine.

    A torch wheel that lies in one of pip's `find-links` folders is used as it is; when a group has a package without
    one, the channel of the torch wheel index is added. An index setting is only emitted when the machine has one of
    its own.
    """
    found = {group: local_wheels(group, site) for group in groups}
    indexes = {f"{TORCH_WHEELS}/{group.channel}": "" for group in groups if not _all_local(group, found[group])}
    extra = [*indexes, *(url for url in site.extra_index_urls if not url.startswith("file:"))]
    env: dict[str, str] = {}
    if site.index_url:
        env |= {"UV_DEFAULT_INDEX": site.index_url, "PIP_INDEX_URL": site.index_url}
    if extra:
        env |= {"UV_INDEX": " ".join(extra), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return SourcePlan(env=env, wheels=tuple(dict.fromkeys(wheel for wheels in found.values() for wheel in wheels)))


def local_wheels(group: TorchGroup, site: SiteFacts) -> tuple[str, ...]:
    """Return the wheels in pip's `find-links` folders that hold a package of `group`, as paths."""
    prefixes = tuple(_wheel_prefix(requirement, group.channel) for requirement in group.packages)
    return tuple(
        f"{folder}/{name}"
        for folder, names in sorted(site.find_links.items())
        for name in names
        if _LOCAL_VERSION.sub("+", name).startswith(prefixes)
    )


def _all_local(group: TorchGroup, wheels: Sequence[str]) -> bool:
    names = [_LOCAL_VERSION.sub("+", wheel.rpartition("/")[2]) for wheel in wheels]
    prefixes = [_wheel_prefix(requirement, group.channel) for requirement in group.packages]
    return all(any(name.startswith(prefix) for name in names) for prefix in prefixes)


def _wheel_prefix(requirement: str, channel: str) -> str:
    name, _, version = requirement.partition("==")
    return f"{name.replace('-', '_')}-{version}+{channel}-"
