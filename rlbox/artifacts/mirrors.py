"""From a sources profile and this machine's settings to the URLs that a file may be fetched from, without I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import quote, unquote, urlencode, urlsplit

from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.engine.reference import parse_reference
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.artifact import TORCH_WHEEL_INDEX_URL, Artifact, TorchWheelGroup
from rlbox.target.target import Base
from rlbox.values import Secret


@dataclass(frozen=True, kw_only=True)
class PipUvEnvAndLocalWheels:
    """Environment for pip and uv, and the local wheels that stand for a remote index (absolute paths)."""

    env: Mapping[str, str]
    local_wheel_paths: tuple[str, ...]


def plan_pip_uv_env_and_local_wheels(
    groups: Sequence[TorchWheelGroup], network_settings: NetworkSettings, profile: Profile
) -> PipUvEnvAndLocalWheels:
    """Return where Python packages come from on this machine.

    A torch wheel that lies in one of pip's `find-links` folders is used as it is; when a group has a package without
    one, its channel is added: of the first mirror (an index, or a flat page of links), else of the torch wheel index.
    The index for all else is the first mirror, else the machine's own; without either no setting is emitted.
    """
    missing = dict.fromkeys(
        group.channel
        for group in groups
        for package in group.packages
        if not select_listed_wheel_paths_of_group(replace(group, packages=(package,)), network_settings)
    )
    pages, indexes = _torch_places(tuple(missing), profile.first_rule_unless_direct("torch-wheels"))
    env: dict[str, str] = {}
    mirror = profile.first_rule_unless_direct("python")
    extra = _remote_extra_indexes(network_settings)
    if mirror and mirror.protocol == "flat":
        pages.append(mirror.url)
    elif index := mirror.url_without_trailing_slash if mirror else network_settings.index_url:
        env |= {"UV_DEFAULT_INDEX": index, "PIP_INDEX_URL": index}
    if indexes or extra:
        env |= {"UV_INDEX": " ".join([*indexes, *extra]), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if pages:
        env["UV_FIND_LINKS"] = ",".join(pages)  # the one list of uv that commas separate
    wheels = tuple(
        dict.fromkeys(
            wheel for group in groups for wheel in select_listed_wheel_paths_of_group(group, network_settings)
        )
    )
    return PipUvEnvAndLocalWheels(env=env, local_wheel_paths=wheels)


def _remote_extra_indexes(network_settings: NetworkSettings) -> list[str]:
    return [url for url in network_settings.extra_index_urls if not url.startswith("file:")]


def _torch_places(channels: Sequence[str], mirror: MirrorRule | None) -> tuple[list[str], list[str]]:
    if mirror is None:
        return [], [f"{TORCH_WHEEL_INDEX_URL}/{channel}" for channel in channels]
    urls = [f"{mirror.url_without_trailing_slash}/{channel}" for channel in channels]
    return ([f"{url}/" for url in urls], []) if mirror.protocol == "flat" else ([], urls)


def select_listed_wheel_paths_of_group(group: TorchWheelGroup, network_settings: NetworkSettings) -> tuple[str, ...]:
    pins = [requirement.partition("==") for requirement in group.packages]
    prefixes = tuple(f"{name.replace('-', '_')}-{version}+{group.channel}-" for name, __, version in pins)
    return tuple(
        f"{folder}/{name}"
        for folder, names in sorted(network_settings.wheels_by_find_links_folder.items())
        for name in names
        if unquote(name).startswith(prefixes)  # addresses write the plus of a local version as %2B
    )


FILE_URL_KINDS = ("http", "huggingface", "cuda-apt", "conda")
"""Kinds whose rules stand for a part of any file's address."""
_NAME = re.compile(r"[-_.]+")
HUB_KINDS = ("huggingface", "modelscope")
"""Kinds of artifacts that are files of a repository on a hub."""
HUB_URL = "https://huggingface.co"
MODELSCOPE_URL, MODELSCOPE_MIRROR = "https://modelscope.cn", "modelscope.cn"
SHARED_ARCHIVES = ("debian", "debian-security", "ubuntu")
"""Archives that mirrors have under their own names; a lock names any other by its address."""
MirrorName = str


@dataclass(frozen=True, kw_only=True)
class MachineSourceSettings:
    """What the machine's own clients are set to.

    `default_index` is uv's own Python index, empty when nobody asked for it; the names of apt archives are `debian`,
    `debian-security`. `hub_endpoint` is HF_ENDPOINT; it and the hub itself get `hub_token`, and no mirror does.
    """

    network_settings: NetworkSettings = field(default_factory=NetworkSettings)
    default_index: str = ""
    url_by_apt_archive: Mapping[str, str] = field(default_factory=dict)
    hub_endpoint: str = ""
    hub_token: Secret | None = None


@dataclass(frozen=True, kw_only=True)
class DownloadLocation:
    """One place to look for a file.

    `page_at_url` says what is at `url`: an `index` page of one package (PEP 503 or 691), a `flat` page of links, or the
    file itself (empty). `mirror` is its name for people; `named_by` says where it comes from: a rule of the `profile`,
    a setting of the `machine`, the `target`, or a client's own `default`. `token` is sent to that place as a bearer.
    """

    mirror: MirrorName
    url: str
    page_at_url: Literal["", "flat", "index"] = ""
    named_by: Literal["default", "machine", "profile", "target"] = "profile"
    token: Secret | None = None


def iter_download_locations(
    artifact: Artifact, profile: Profile, machine: MachineSourceSettings
) -> Iterator[DownloadLocation]:
    """Yield the places of a file in the order in which they are to be tried; a `git` artifact has none.

    Local folders of wheels come first, then the profile's rules.
    """
    match artifact.kind:
        case "python" | "torch-wheels":
            yield from _local_wheels(artifact, machine.network_settings)
            for rule in profile.rules_or_direct_rule_for(artifact.kind):
                yield from _package_places(artifact, rule, machine)
        case "apt":
            for rule in profile.rules_or_direct_rule_for("apt"):
                base = resolve_apt_archive_url_or_empty(rule, artifact.origin, machine)
                if base:
                    title = _("this machine's apt sources") if rule.protocol == "direct" else rule.display_name
                    yield DownloadLocation(
                        mirror=title, url=f"{base}/{quote(artifact.file)}", named_by=_by(rule, "machine")
                    )
        case "http":
            yield from list_http_mirror_urls_or_original(artifact.origin, profile)
        case "huggingface" | "modelscope":
            yield from _list_hub_places(artifact, profile, machine)
        case "oci" | "git" | "compiled":
            return


def resolve_apt_archive_url_or_empty(rule: MirrorRule, archive_name_or_url: str, machine: MachineSourceSettings) -> str:
    """Return the address of an apt archive by one rule; empty when the machine does not know it."""
    name = archive_name_or_url.rpartition("/")[2]
    if rule.protocol != "direct":
        return f"{rule.url_without_trailing_slash}/{name}"
    return (
        archive_name_or_url if "://" in archive_name_or_url else machine.url_by_apt_archive.get(archive_name_or_url, "")
    )


def merge_profile_apt_urls_over_machine(
    archive_names: Iterable[str], profile: Profile, machine: MachineSourceSettings
) -> dict[str, str]:
    """Return the address of each apt archive from the best rule that has one; the machine's others stay as they are."""
    found = dict(machine.url_by_apt_archive)
    for name in archive_names:
        urls = (
            resolve_apt_archive_url_or_empty(rule, name, machine) for rule in profile.rules_or_direct_rule_for("apt")
        )
        if url := next(filter(None, urls), ""):
            found[name] = url
    return found


def map_suites_to_archive_names(base: Base) -> dict[str, str]:
    distribution, __, suite = base.bootstrap.partition(":")
    for further in base.suites:
        if further.partition("-")[0] != suite:
            raise SpecError(
                _("base.suites: {further!r} is not a suite of {bootstrap}").format(
                    further=further, bootstrap=base.bootstrap
                )
            )
    security = {further for further in base.suites if further.endswith("-security")}
    return {name: distribution + ("-security" if name in security else "") for name in (suite, *base.suites)}


def _local_wheels(artifact: Artifact, site: NetworkSettings) -> Iterator[DownloadLocation]:
    for folder, names in sorted(site.wheels_by_find_links_folder.items()):
        for name in names:
            if is_same_unquoted_file_name(name, artifact.file):
                yield DownloadLocation(mirror=folder, url=f"file://{quote(folder)}/{quote(name)}", named_by="machine")


def _package_places(artifact: Artifact, rule: MirrorRule, machine: MachineSourceSettings) -> Iterator[DownloadLocation]:
    name = _NAME.sub("-", artifact.name).lower()
    if rule.protocol == "direct":
        yield from (
            DownloadLocation(mirror=title, url=f"{base.rstrip('/')}/{name}/", page_at_url="index", named_by=by)
            for title, base, by in _machine_indexes(artifact, machine)
        )
        return
    base = (
        f"{rule.url_without_trailing_slash}/{artifact.origin}"
        if artifact.kind == "torch-wheels"
        else rule.url_without_trailing_slash
    )
    if rule.protocol == "flat":
        yield DownloadLocation(mirror=rule.display_name, url=f"{base}/", page_at_url="flat")
    else:
        yield DownloadLocation(mirror=rule.display_name, url=f"{base}/{name}/", page_at_url="index")


def _machine_indexes(
    artifact: Artifact, machine: MachineSourceSettings
) -> Iterator[tuple[str, str, Literal["default", "machine"]]]:
    site = machine.network_settings
    if artifact.kind == "torch-wheels":
        yield _("the torch wheel index"), f"{TORCH_WHEEL_INDEX_URL}/{artifact.origin}", "default"
    elif site.index_url:
        yield _("this machine's index"), site.index_url, "machine"
    elif machine.default_index:
        yield _("uv's default index"), machine.default_index, "default"
    for url in _remote_extra_indexes(site):
        yield _("an extra index of this machine"), url, "machine"


def _list_hub_places(
    artifact: Artifact, profile: Profile, machine: MachineSourceSettings
) -> tuple[DownloadLocation, ...]:
    """Return HF_ENDPOINT, the profile's mirrors of the hub, the hub, and ModelScope, which may have the same bytes."""
    repo, __, commit = artifact.origin.partition(" ")
    places = []
    if artifact.kind == "huggingface":
        path = format_hub_file_path(repo, commit, artifact.file)
        places = list_hub_endpoints(profile, machine.hub_endpoint, machine.hub_token)
        places = [replace(place, url=place.url + path) for place in places]
        commit = "master"  # its commits are not those of the hub
    url = format_modelscope_file_url(repo, commit, artifact.file)
    places.append(DownloadLocation(mirror=MODELSCOPE_MIRROR, url=url, named_by="default"))
    return tuple(places)


def list_hub_endpoints(profile: Profile, hub_endpoint: str, token: Secret | None) -> list[DownloadLocation]:
    """Return the places that speak the hub's API, in fail-over order and each once; `url` has no slash at its end.

    A profile has mirrors where the hub is slow or out of reach, so they come before it.
    """
    own = hub_endpoint.rstrip("/")
    endpoints = [DownloadLocation(mirror=urlsplit(own).netloc, url=own, named_by="machine", token=token)] if own else []
    endpoints += (
        DownloadLocation(mirror=rule.display_name, url=_rewrite_url(rule, HUB_URL).rstrip("/"))
        for rule in profile.rule
        if rule.kind == "huggingface" and rule.url and HUB_URL.startswith(rule.match)
    )
    endpoints.append(DownloadLocation(mirror="huggingface.co", url=HUB_URL, named_by="target", token=token))
    by_url: dict[str, DownloadLocation] = {}
    for place in endpoints:
        by_url.setdefault(place.url, place)
    return list(by_url.values())


def format_hub_file_path(kind_and_repo: str, commit: str, path: str) -> str:
    """Return the path of a file below an endpoint of the hub; `kind_and_repo` is `models/REPO` or `datasets/REPO`."""
    return f"/{kind_and_repo.removeprefix('models/')}/resolve/{commit}/{quote(path)}"


def format_modelscope_file_url(kind_and_repo: str, revision: str, path: str) -> str:
    query = urlencode({"Revision": revision, "FilePath": path})
    return f"{MODELSCOPE_URL}/api/v1/{kind_and_repo}/repo?{query}"


def _by(rule: MirrorRule, direct: Literal["machine", "target"]) -> Literal["machine", "profile", "target"]:
    return direct if rule.protocol == "direct" else "profile"


def list_http_mirror_urls_or_original(url: str, profile: Profile) -> tuple[DownloadLocation, ...]:
    """Return the places of the file at `url`; without a rule that stands for it, that address alone."""
    return _rewritten_places(FILE_URL_KINDS, url, profile)


def list_git_mirror_urls_or_original(url: str, profile: Profile) -> tuple[DownloadLocation, ...]:
    return _rewritten_places(("git",), url, profile)


def _rewritten_places(kinds: Iterable[str], url: str, profile: Profile) -> tuple[DownloadLocation, ...]:
    found = [
        DownloadLocation(mirror=rule.display_name, url=_rewrite_url(rule, url), named_by=_by(rule, "target"))
        for kind in kinds
        for rule in profile.rule
        if rule.kind == kind and url.startswith(rule.match)
    ]
    return tuple(found) or (DownloadLocation(mirror="direct", url=url, named_by="target"),)


def _rewrite_url(rule: MirrorRule, url: str) -> str:
    match rule.protocol:
        case "url-prefix":
            return f"{rule.url_without_trailing_slash}/{url}"
        case "host" | "git-instead-of":
            rest = url.removeprefix(rule.match)
            return rule.url.rstrip("/") + ("/" if rule.url.endswith("/") and not rest.startswith("/") else "") + rest
        case _:
            return url


def list_image_references_or_original(image: str, profile: Profile) -> tuple[DownloadLocation, ...]:
    wanted = parse_reference(image)
    tail = (f":{wanted.tag}" if wanted.tag else "") + (f"@{wanted.digest}" if wanted.digest else "")
    found = []
    for rule in profile.rules_or_direct_rule_for("oci"):
        base = rule.url_without_trailing_slash.partition("://")[2]
        if rule.protocol == "direct":
            found.append(DownloadLocation(mirror="direct", url=image, named_by="target"))
        elif rule.match in ("", wanted.host):
            name = wanted.repository if rule.protocol == "host" else wanted.name_without_tag
            found.append(DownloadLocation(mirror=rule.display_name, url=f"{base}/{name}{tail}"))
    return tuple(found) or (DownloadLocation(mirror="direct", url=image, named_by="target"),)


def is_same_unquoted_file_name(url_name: str, file_name: str) -> bool:
    """Return whether two file names are one; addresses write the plus of a local version as `%2B`."""
    return unquote(url_name) == unquote(file_name)


def explain_bad_response(status: int, content_type: str, content_length: int | None, artifact: Artifact) -> str | None:
    """Return why an answer cannot be the file: its status, a page instead of a file, its length.

    `content_length` is the answer's content length, None when it does not say.
    """
    if status not in (200, 206):
        return _("answered {status}").format(status=status)
    if "html" in content_type.lower() and not artifact.file.endswith((".html", ".htm")):
        return _("answered with a web page instead of the file")
    if status == 200 and artifact.size and content_length is not None and content_length != artifact.size:
        return _("offers {size} bytes, the lock says {artifact_size}").format(
            size=content_length, artifact_size=artifact.size
        )
    return None
