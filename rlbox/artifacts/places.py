"""Where a lock is resolved from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlbox.app import App
from rlbox.artifacts.live import live_sources
from rlbox.artifacts.mirror_search import Locator, probe_machine
from rlbox.artifacts.mirrors import SHARED_ARCHIVES, FileAddress, archive_url, archives, oci_places, suites_of
from rlbox.artifacts.objects import Store, store_folder
from rlbox.artifacts.settings import SourcePlan, plan_sources
from rlbox.system.http import create_client
from rlbox.system.network_settings import NetworkSettings, read_network_settings
from rlbox.target.artifact import torch_groups
from rlbox.target.target import Target


def lock_places(app: App, target: Target, sources: str = "") -> Places:
    """Return where the target's lock is resolved from, by the profile `sources` or its own."""
    site = read_network_settings()
    profile, choice = live_sources(app, sources or target.sources, site)
    machine = probe_machine(site, index=False)
    if target.base.bootstrap:
        found = archives(set(suites_of(target.base).values()), profile, machine, choice)
    else:  # the image has source lists of its own, which a profile's mirror may stand for
        rule = choice.first("apt")
        found = {name: archive_url(rule, name, machine) for name in SHARED_ARCHIVES} if rule else {}
    return Places(
        sources=plan_sources(torch_groups(target), site, choice),
        archives=found,
        locator=Locator(profile, machine, create_client(site), choice=choice),
        site=site,
        store=Store(store_folder(None)),
        images=oci_places(target.base.image, profile, choice) if target.base.image else (),
    )


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a lock is resolved from: settings for uv, apt archives by name, who knows the mirrors of other files.

    `images` are the references that the base image may be pulled by; it goes into `store`, to be read.
    """

    sources: SourcePlan
    archives: Mapping[str, str]
    locator: Locator
    site: NetworkSettings
    store: Store
    images: Sequence[FileAddress]
