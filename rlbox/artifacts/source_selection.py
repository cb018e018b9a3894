"""Where the files of a command come from now: a sources profile without its dead mirrors."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlbox.app import App
from rlbox.artifacts.locator import FileLocator, probe_machine_sources
from rlbox.artifacts.mirror_probe import drop_dead_mirrors
from rlbox.artifacts.mirrors import (
    SHARED_ARCHIVES,
    FileUrl,
    PackageIndexSettings,
    build_archive_url,
    choose_archive_urls,
    list_image_urls,
    map_suites_to_archives,
    plan_package_indexes,
)
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.profile import Profile, load_profile
from rlbox.system.http import create_client
from rlbox.system.network_settings import NetworkSettings, read_network_settings
from rlbox.target.artifact import Artifact, TorchGroup, list_torch_groups
from rlbox.target.target import Target


def select_sources(
    app: App, sources_profile: str, network_settings: NetworkSettings, files: Sequence[Artifact] = ()
) -> Profile:
    """Return a sources profile without its dead mirrors; these and outdated ones are said.

    `files`: Locked files: a mirror that offers none of its kind counts as dead.
    """
    profile, dead = drop_dead_mirrors(load_profile(app.project, sources_profile), network_settings, files)
    for probe in dead:
        app.say(f"{probe.mirror} is passed over: {probe.reason}")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    old = dict.fromkeys(rule.title for rule in profile.rule if rule.expires and rule.expires < today)
    if old:
        app.say(f"profile {profile.name}: what it says of {', '.join(old)} is past its date; `rlbox mirrors ls`")
    return profile


def create_file_locator(app: App, sources_profile: str, files: Sequence[Artifact] = ()) -> FileLocator:
    """Return who knows where the files of a lock are; a mirror that is passed over is said."""
    site = read_network_settings()
    return FileLocator(
        select_sources(app, sources_profile, site, files),
        probe_machine_sources(site),
        create_client(site),
        on_skip=lambda mirror, reason: app.say(f"{mirror} is passed over: {reason}"),
    )


def plan_build_step_env(
    app: App,
    groups: Sequence[TorchGroup],
    sources_profile: str,
    network_settings: NetworkSettings,
    files: Sequence[Artifact] = (),
) -> Mapping[str, str]:
    profile = select_sources(app, sources_profile, network_settings, files)
    return plan_package_indexes(groups, network_settings, profile).env


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


def prepare_lock_sources(app: App, target: Target, sources_profile: str = "") -> LockSources:
    """Return where the target's lock is resolved from, by the profile `sources_profile` or its own."""
    site = read_network_settings()
    profile = select_sources(app, sources_profile or target.sources, site)
    machine = probe_machine_sources(site, probe_index=False)
    if target.base.bootstrap:
        found = choose_archive_urls(set(map_suites_to_archives(target.base).values()), profile, machine)
    else:  # the image has source lists of its own, which a profile's mirror may stand for
        rule = profile.find_first_mirror("apt")
        found = {name: build_archive_url(rule, name, machine) for name in SHARED_ARCHIVES} if rule else {}
    return LockSources(
        index_settings=plan_package_indexes(list_torch_groups(target), site, profile),
        archive_urls=found,
        locator=FileLocator(profile, machine, create_client(site)),
        network_settings=site,
        store=ObjectStore(resolve_store_dir(None)),
        base_image_urls=list_image_urls(target.base.image, profile) if target.base.image else (),
    )
