"""Where bytes come from: the machine's own package settings, turned into what a resolver or a build step reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from rlbox.artifacts.profile import Rule
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.artifact import TORCH_WHEELS, TorchGroup


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The rules of a sources profile as they are to be tried now: per kind, the live ones in order.

    `skipped` are the mirrors that were found dead, as pairs of mirror and reason.
    """

    profile: str = "direct"
    rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()

    def first(self, kind: str) -> Rule | None:
        rule = next(iter(self.rules.get(kind, ())), None)
        return None if rule is None or rule.protocol == "direct" else rule


NO_CHOICE = Choice()


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """Environment for pip and uv, and the local wheels that stand for a remote index (absolute paths).

    `profile` is the name of the sources profile that it follows.
    """

    env: Mapping[str, str]
    wheels: tuple[str, ...]
    profile: str = "direct"


def plan_sources(groups: Sequence[TorchGroup], site: NetworkSettings, choice: Choice = NO_CHOICE) -> SourcePlan:
    """Return where Python packages come from on this machine.

    A torch wheel that lies in one of pip's `find-links` folders is used as it is; when a group has a package without
    one, its channel is added: of the chosen mirror (an index, or a flat page of links), else of the torch wheel index.
    The index for all else is the chosen mirror, else the machine's own; without either no setting is emitted.
    """
    missing = dict.fromkeys(
        group.channel
        for group in groups
        for package in group.packages
        if not local_wheels(replace(group, packages=(package,)), site)
    )
    pages, indexes = _torch_places(tuple(missing), choice.first("torch-wheels"))
    env: dict[str, str] = {}
    mirror = choice.first("python")
    extra = [url for url in site.extra_index_urls if not url.startswith("file:")]
    if mirror and mirror.protocol == "flat":
        pages.append(mirror.url)
    elif index := mirror.base if mirror else site.index_url:
        env |= {"UV_DEFAULT_INDEX": index, "PIP_INDEX_URL": index}
    if indexes or extra:
        env |= {"UV_INDEX": " ".join([*indexes, *extra]), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if pages:
        env["UV_FIND_LINKS"] = ",".join(pages)  # the one list of uv that commas separate
    wheels = tuple(dict.fromkeys(wheel for group in groups for wheel in local_wheels(group, site)))
    return SourcePlan(env=env, wheels=wheels, profile=choice.profile)


def _torch_places(channels: Sequence[str], mirror: Rule | None) -> tuple[list[str], list[str]]:
    if mirror is None:
        return [], [f"{TORCH_WHEELS}/{channel}" for channel in channels]
    urls = [f"{mirror.base}/{channel}" for channel in channels]
    return ([f"{url}/" for url in urls], []) if mirror.protocol == "flat" else ([], urls)


def local_wheels(group: TorchGroup, site: NetworkSettings) -> tuple[str, ...]:
    """Return the wheels in pip's `find-links` folders that hold a package of `group`, as paths."""
    prefixes = tuple(_wheel_prefix(requirement, group.channel) for requirement in group.packages)
    return tuple(
        f"{folder}/{name}"
        for folder, names in sorted(site.find_links.items())
        for name in names
        if unquote(name).startswith(prefixes)  # addresses write the plus of a local version as %2B
    )


def _wheel_prefix(requirement: str, channel: str) -> str:
    name, _, version = requirement.partition("==")
    return f"{name.replace('-', '_')}-{version}+{channel}-"
