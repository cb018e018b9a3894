"""Choose the mirrors that a command uses now: by the last probe, or by a quick look at them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from rlbox.app import App
from rlbox.artifacts.egress import find_unreachable_host, suggest_mirror_rule
from rlbox.artifacts.locator import FileLocator, probe_machine_sources
from rlbox.artifacts.mirror_probe import (
    MirrorProbe,
    choose_by_probes,
    choose_probe_file,
    format_rule_id,
    load_ranking,
    save_ranking,
)
from rlbox.artifacts.mirrors import (
    SHARED_ARCHIVES,
    FileUrl,
    MachineSources,
    MirrorChoice,
    PackageIndexSettings,
    build_archive_url,
    choose_archive_urls,
    find_response_error,
    list_image_urls,
    map_suites_to_archives,
    plan_package_indexes,
)
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.profile import MirrorRule, Profile, load_profile
from rlbox.errors import WorkFailed
from rlbox.system.http import HttpClient, NoResponseError, create_client, explain_no_response
from rlbox.system.network_settings import NetworkSettings, read_network_settings
from rlbox.target.artifact import Artifact, TorchGroup, list_torch_groups
from rlbox.target.target import Target

QUICK_PROBE_TIMEOUT_S = 3.0
# Kinds of which one address goes into a resolver's or a build's settings; the others fail over file by file.
_ONE_ADDRESS = ("apt", "python", "torch-wheels")


def load_or_probe_mirrors(
    profile: Profile, network_settings: NetworkSettings, artifacts: Sequence[Artifact] = ()
) -> MirrorChoice:
    """Return the rules of a profile in the order in which they are to be tried now.

    A ranking by `rlbox mirrors probe` decides for six hours. Without one, the rules of the kinds that can have one
    address only are asked in turn, 3 s each, until one answers; those that do not are in `skipped`, and are left alone
    for two minutes. A profile without rules costs nothing.

    `artifacts`: Locked files, if there are any: a mirror must list one of them.
    """
    if not profile.rule:
        return MirrorChoice(profile_name=profile.name)
    if (known := load_ranking(profile)) is not None:
        return choose_by_probes(profile, known)
    found: list[MirrorProbe] = []
    with create_client(network_settings, idle_timeout_s=QUICK_PROBE_TIMEOUT_S) as http:
        for kind in _ONE_ADDRESS:
            for rule in profile.rules_for(kind):
                reason = _look(rule, choose_probe_file(rule, artifacts), profile, http)
                if not reason:
                    break
                found.append(MirrorProbe(kind=kind, mirror=rule.title, place=format_rule_id(rule), reason=reason))
    save_ranking(profile, found, quick=True)
    return choose_by_probes(profile, found)


def _look(rule: MirrorRule, artifact: Artifact | None, profile: Profile, http: HttpClient) -> str:
    """Return why a rule is of no use now, or nothing; only the head of a file is read."""
    if rule.protocol == "direct":
        return ""
    if artifact is None:
        return _head(http, f"{rule.base_url}/", None)
    reasons: list[str] = []
    choice = MirrorChoice(profile_name=profile.name, rules_by_kind={rule.kind: (rule,)})
    locator = FileLocator(
        profile, MachineSources(), http, choice=choice, on_skip=lambda mirror, reason: reasons.append(reason)
    )
    for link in locator.list_urls(artifact):
        if not (reason := _head(http, link.url, artifact)):
            return ""
        reasons.append(reason)
    return "; ".join(reasons)


def _head(http: HttpClient, url: str, artifact: Artifact | None) -> str:
    """Return why an address is of no use, or nothing; without a file, any answer but a server's failure will do."""
    try:
        with http.stream("GET", url) as answer:
            if artifact is None:
                return f"answered {answer.status}" if answer.status >= 500 else ""
            return find_response_error(
                answer.status, answer.headers.get("content-type", ""), answer.content_length, artifact
            )
    except NoResponseError as error:
        return explain_no_response(error)


def create_file_locator(app: App, sources_profile: str, files: Sequence[Artifact] = ()) -> FileLocator:
    """Return who knows where the files of a lock are; a mirror that is passed over is said."""
    site = read_network_settings()
    profile, choice = select_sources(app, sources_profile, site, files)
    return FileLocator(
        profile,
        probe_machine_sources(site),
        create_client(site),
        choice=choice,
        on_skip=lambda mirror, reason: app.say(f"{mirror} is passed over: {reason}"),
    )


def plan_build_step_env(
    app: App,
    groups: Sequence[TorchGroup],
    sources_profile: str,
    network_settings: NetworkSettings,
    files: Sequence[Artifact] = (),
) -> Mapping[str, str]:
    _, choice = select_sources(app, sources_profile, network_settings, files)
    return plan_package_indexes(groups, network_settings, choice).env


class SelectedSources(NamedTuple):
    """A sources profile, and its mirrors in the order in which they are tried now."""

    profile: Profile
    mirrors: MirrorChoice


def select_sources(
    app: App, sources_profile: str, network_settings: NetworkSettings, files: Sequence[Artifact] = ()
) -> SelectedSources:
    """Return a sources profile and the order of its mirrors now; dead and outdated ones are said.

    `files`: Locked files: a mirror that lists none of its kind counts as dead.
    """

    profile = load_profile(app.project, sources_profile)
    choice = load_or_probe_mirrors(profile, network_settings, files)
    for mirror, reason in choice.dead_mirrors:
        app.say(f"{mirror} is passed over: {reason}")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    old = dict.fromkeys(rule.title for rule in profile.rule if rule.expires and rule.expires < today)
    if old:
        app.say(f"profile {profile.name}: what it says of {', '.join(old)} is past its date; `rlbox mirrors ls`")
    return SelectedSources(profile, choice)


@contextmanager
def suggest_mirror_on_failure(sources_profile: str) -> Iterator[None]:
    """Add to a failure that is about a host what to write into the profile `sources_profile` about it."""
    try:
        yield
    except WorkFailed as error:
        host = find_unreachable_host(error.what.splitlines())
        if not host:
            raise
        step = suggest_mirror_rule(host, sources_profile) + (f"\n         {error.next_step}" if error.next_step else "")
        raise WorkFailed(error.what, where=error.where, next_step=step) from error


def prepare_lock_sources(app: App, target: Target, sources_profile: str = "") -> LockSources:
    """Return where the target's lock is resolved from, by the profile `sources_profile` or its own."""
    site = read_network_settings()
    profile, choice = select_sources(app, sources_profile or target.sources, site)
    machine = probe_machine_sources(site, probe_index=False)
    if target.base.bootstrap:
        found = choose_archive_urls(set(map_suites_to_archives(target.base).values()), profile, machine, choice)
    else:  # the image has source lists of its own, which a profile's mirror may stand for
        rule = choice.find_preferred_mirror("apt")
        found = {name: build_archive_url(rule, name, machine) for name in SHARED_ARCHIVES} if rule else {}
    return LockSources(
        index_settings=plan_package_indexes(list_torch_groups(target), site, choice),
        archive_urls=found,
        locator=FileLocator(profile, machine, create_client(site), choice=choice),
        network_settings=site,
        store=ObjectStore(resolve_store_dir(None)),
        base_image_urls=list_image_urls(target.base.image, profile, choice) if target.base.image else (),
    )


@dataclass(frozen=True, kw_only=True)
class LockSources:
    """Where a lock is resolved from: settings for uv, apt archives by name, who knows the mirrors of other files.

    `base_image_urls` are the references that the base image may be pulled by; it goes into `store`, to be read.
    """

    index_settings: PackageIndexSettings
    archive_urls: Mapping[str, str]
    locator: FileLocator
    network_settings: NetworkSettings
    store: ObjectStore
    base_image_urls: Sequence[FileUrl]
