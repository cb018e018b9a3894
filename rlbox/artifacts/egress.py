"""Hosts that lock, fetch, build and run of a target contact, with those of `[[hub]]` entries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from rlbox.artifacts.locator import UnusableMirrorError, fetch_index_page_files
from rlbox.artifacts.mirrors import (
    HUB_KINDS,
    DownloadLocation,
    MachineSourceSettings,
    is_same_unquoted_file_name,
    iter_download_locations,
    list_git_mirror_urls_or_original,
    list_http_mirror_urls_or_original,
    list_image_references_or_original,
    map_suites_to_archive_names,
)
from rlbox.artifacts.profile import EnvCondition, HiddenHost, Phase, Profile
from rlbox.engine.reference import parse_reference
from rlbox.i18n import _, join
from rlbox.system.http import HttpClient, NoFullResponseError, create_netrc_client
from rlbox.target.artifact import Artifact, ArtifactKind
from rlbox.target.target import Target

UNKNOWN_DEFAULT_INDEX = _("default of the client (not asked: no network)")
PHASES: tuple[Phase, ...] = ("lock", "fetch", "build", "run")
_GETTING = PHASES[:3]


@dataclass(frozen=True, kw_only=True)
class HostContact:
    """One host and why it is contacted.

    `declared` says who decided it: `profile`, `machine` (settings of this machine), `target` (an address of the spec),
    `default` (a client's own), `hidden` (software that nobody told to). `rule` is what changes or closes it;
    `closed_by` is the setting of the target that closes it already, and then it is not contacted. The host is empty
    for a default that could not be asked for.
    """

    host: str
    kind: str
    phases: tuple[Phase, ...]
    declared: Literal["default", "hidden", "machine", "profile", "target"]
    why: str
    rule: str = ""
    closed_by: EnvCondition = ""


@dataclass(frozen=True, kw_only=True)
class SourceUrl:
    """An address that files are got from, and the one that shows where its answers lead."""

    kind: str
    file_url: DownloadLocation
    sample_artifact: Artifact | None = None


def list_remote_source_urls(
    target: Target, artifacts: Sequence[Artifact], profile: Profile, machine: MachineSourceSettings
) -> tuple[SourceUrl, ...]:
    """Return every address that the target's files may be got from, with one file to look up at each.

    `artifacts` are those of the lock; before there is one, the spec says which kinds there will be. Files of a hub are
    looked up in addition.
    """
    found = []
    for artifact in _samples(target, artifacts):
        mine = tuple(iter_download_locations(artifact, profile, machine))
        if not any(source.url.startswith("file:") and not source.page_at_url for source in mine):  # else it is local
            found += [SourceUrl(kind=artifact.kind, file_url=source, sample_artifact=artifact) for source in mine]
    found += [
        SourceUrl(kind="http", file_url=p)
        for file in target.http
        for p in list_http_mirror_urls_or_original(file.url, profile)
    ]
    found += [
        SourceUrl(kind="git", file_url=p)
        for tree in target.git
        for p in list_git_mirror_urls_or_original(tree.url, profile)
    ]
    found += [
        SourceUrl(kind="oci", file_url=p)
        for p in (list_image_references_or_original(target.base.image, profile) if target.base.image else ())
    ]
    return tuple(one for one in found if not one.file_url.url.startswith("file:"))


def _samples(target: Target, artifacts: Sequence[Artifact]) -> Iterator[Artifact]:
    """Yield the smallest file of every kind and origin; torch wheels all of them, for some may lie on this machine.

    Of a hub it is the largest: large files lie on other hosts.
    """
    smallest: dict[tuple[str, str], Artifact] = {}
    largest = {(file.kind, file.origin): file for file in sorted(artifacts, key=lambda one: one.size)}
    yield from (file for file in largest.values() if file.kind in HUB_KINDS)
    for artifact in sorted(
        _drop_hub_files(artifacts) or _assumed(target), key=lambda one: (one.kind, one.size, one.file)
    ):
        if artifact.kind == "torch-wheels":
            yield artifact
        elif artifact.kind in ("apt", "python"):
            smallest.setdefault((artifact.kind, artifact.origin), artifact)
    yield from smallest.values()


def _drop_hub_files(artifacts: Iterable[Artifact]) -> list[Artifact]:
    return [artifact for artifact in artifacts if artifact.kind not in HUB_KINDS]


def _assumed(target: Target) -> Iterator[Artifact]:
    def artifact(kind: ArtifactKind, name: str, file: str, origin: str) -> Artifact:
        return Artifact(kind=kind, name=name, file=file, sha256="", size=0, group="", origin=origin)

    for suite, archive in map_suites_to_archive_names(target.base).items() if target.base.bootstrap else ():
        yield artifact("apt", suite, f"dists/{suite}/InRelease", archive)
    yield artifact("python", "uv", "", "")
    for group in target.stack:
        for requirement in group.packages if group.source == "torch-wheels" else ():
            yield artifact("torch-wheels", _distribution_name(requirement), "", group.channel)


def list_possible_host_contacts(
    target: Target,
    artifacts: Sequence[Artifact],
    profile: Profile,
    hidden_hosts: Iterable[HiddenHost],
    machine: MachineSourceSettings,
    redirect_hosts_by_url: Mapping[str, tuple[str, ...]],
) -> tuple[HostContact, ...]:
    """Return every host with its reasons, each reason once: what gets files first, then what runs.

    `redirect_hosts_by_url`: Address to the further hosts that its answers lead to (files that an index lists,
      redirects); what is not in it could not be asked.
    """
    addresses = list_remote_source_urls(target, artifacts, profile, machine)
    found = [
        *_proxies(machine),
        *(one for address in addresses for one in _address_contacts(address, redirect_hosts_by_url)),
    ]
    found += _unasked(target, artifacts, addresses)
    registries = {one.host for one in found if one.kind == "oci"}
    found += _hidden_contacts(target, _drop_hub_files(artifacts), hidden_hosts, registries)
    return tuple(dict.fromkeys(found))


def map_phases_to_hosts_not_closed_by_env(contacts: Iterable[HostContact]) -> dict[str, list[str]]:
    known = [one for one in contacts if one.host and not one.closed_by]
    return {phase: sorted({one.host for one in known if phase in one.phases}) for phase in PHASES}


def _parse_host(url_or_image: str) -> str:
    return (
        (urlsplit(url_or_image).hostname or "")
        if "://" in url_or_image
        else parse_reference(url_or_image).host.partition(":")[0]
    )


def _proxies(machine: MachineSourceSettings) -> Iterator[HostContact]:
    for name, value in sorted(machine.network_settings.proxy_env.items()):
        host = _parse_host(value if "://" in value else f"http://{value}")
        if name.upper() != "NO_PROXY" and host:
            why = _("{name}: what follows goes through it").format(name=name.upper())
            yield HostContact(host=host, kind="proxy", phases=_GETTING, declared="machine", why=why)


def _address_contacts(
    address: SourceUrl, redirect_hosts_by_url: Mapping[str, tuple[str, ...]]
) -> Iterator[HostContact]:
    source = address.file_url
    host = _parse_host(source.url)
    behind = redirect_hosts_by_url.get(source.url)
    is_known = behind is not None or address.kind in ("git", "oci")
    unknown = "" if is_known else _(" (not asked where it leads: no network)")

    is_hub = address.kind in HUB_KINDS
    phases, rule = (_GETTING[:2], _rule("huggingface")) if is_hub else (_GETTING, _rule(address.kind))

    def contact(where: str, why: str) -> HostContact:
        return HostContact(host=where, kind=address.kind, phases=phases, declared=source.named_by, why=why, rule=rule)

    what = source.mirror if source.mirror != host else _("mirror")
    if is_hub and address.sample_artifact:
        what = f"[[hub]] {address.sample_artifact.name}"
    yield contact(host, what + unknown)
    for further in behind or ():
        if further != host:
            yield contact(further, _("{host} leads there").format(host=host))


def _rule(kind: str) -> str:
    return _("a rule of kind {kind!r} in a sources profile").format(kind=kind)


def _unasked(target: Target, artifacts: Sequence[Artifact], addresses: Sequence[SourceUrl]) -> Iterator[HostContact]:
    known = {address.kind for address in addresses}
    for kind in dict.fromkeys(artifact.kind for artifact in _samples(target, artifacts)):
        if kind in ("apt", "python") and kind not in known:
            yield HostContact(
                host="", kind=kind, phases=_GETTING, declared="default", why=UNKNOWN_DEFAULT_INDEX, rule=_rule(kind)
            )


def _hidden_contacts(
    target: Target, artifacts: Sequence[Artifact], hidden: Iterable[HiddenHost], registries: Collection[str]
) -> Iterator[HostContact]:
    locked = {_distribution_name(artifact.name): artifact for artifact in artifacts}
    named = {_distribution_name(line) for group in target.stack for line in group.packages}
    for row in hidden:
        mine = [name for name in row.packages if name in locked or (not artifacts and name in named)]
        if row.sdist:
            mine = [name for name in mine if name not in locked or not locked[name].file.endswith(".whl")]
        if (row.packages and not mine) or (row.registry and row.registry not in registries):
            continue
        if row.when and not any(env_condition_holds(condition, target.env) for condition in row.when):
            continue
        closed = next((condition for condition in row.unless if env_condition_holds(condition, target.env)), "")
        host, why = row.host, _(row.why)
        if row.replaced_by and (value := target.env.get(row.replaced_by)):
            host, why = _parse_host(value) if "://" in value else "", why + f" ({row.replaced_by})"
        shown = join(": ", (", ".join(mine), why)) if mine else why
        yield HostContact(
            host=host,
            kind=row.kind,
            phases=(row.phase,),
            declared="hidden",
            why=shown,
            rule=_(row.rule),
            closed_by=closed,
        )


def env_condition_holds(condition: str, env: Mapping[str, str]) -> bool:
    """Return whether `NAME` is set to anything, or `NAME=VALUE|VALUE` to one of the values, in any case."""
    name, equals, values = condition.partition("=")
    given = env.get(name, "")
    return given.lower() in values.lower().split("|") if equals else bool(given)


def _distribution_name(requirement: str) -> str:
    name = re.split(r"[\[=<>!~; ]", requirement, maxsplit=1)[0]
    return canonicalize_name(name)


_AT_ONCE = 8
_SILENT_S = 5.0
_ASKED = ("apt", "http", "python", "torch-wheels", *HUB_KINDS)


def probe_redirect_and_listed_hosts_by_url(
    target: Target, artifacts: Sequence[Artifact], profile: Profile, machine: MachineSourceSettings
) -> dict[str, tuple[str, ...]]:
    """Return where the addresses of a target's files lead; one that does not answer is left out."""
    addresses = [one for one in list_remote_source_urls(target, artifacts, profile, machine) if one.kind in _ASKED]
    with (
        create_netrc_client(machine.network_settings, idle_timeout_s=_SILENT_S) as http,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        answers = pool.map(lambda address: _behind(http, address), addresses)
        return {one.file_url.url: hosts for one, hosts in zip(addresses, answers, strict=True) if hosts is not None}


def _behind(http: HttpClient, address: SourceUrl) -> tuple[str, ...] | None:
    source, artifact = address.file_url, address.sample_artifact
    if not source.page_at_url:
        return _redirects(http, source.url)
    try:
        listed = fetch_index_page_files(http, source.url)
    except UnusableMirrorError:
        return None
    mine = [file for file in listed if artifact and is_same_unquoted_file_name(file.file, artifact.file)] or listed[:1]
    hosts = [_parse_host(file.url) for file in mine]
    return _unique([*hosts, *(host for file in mine[:1] for host in _redirects(http, file.url) or ())])


def _redirects(http: HttpClient, url: str) -> tuple[str, ...] | None:
    try:
        answer = http.request("HEAD", url)
    except NoFullResponseError:
        return None
    return _unique(map(_parse_host, answer.urls))


def _unique(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for host in hosts if host))
