"""Where a target's files come from on this machine: its sources profile and the machine's own settings together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlbox.errors import WorkFailed

if TYPE_CHECKING:
    from rlbox.act.lock import Places
    from rlbox.act.mirrors import Locator
    from rlbox.act.store import Store
    from rlbox.cli.app import App
    from rlbox.plan.image import ImagePlan
    from rlbox.plan.sources import Choice, SiteFacts
    from rlbox.spec.artifact import Artifact
    from rlbox.spec.lock import Lock
    from rlbox.spec.profile import Profile
    from rlbox.spec.target import Target


def lock_places(app: App, target: Target, sources: str = "") -> Places:
    """Return where the target's lock is resolved from, by the profile `sources` or its own."""
    from rlbox.act.lock import Places
    from rlbox.act.mirrors import Locator, probe_machine
    from rlbox.act.pages import new_client
    from rlbox.act.site import probe_site
    from rlbox.act.store import Store, store_folder
    from rlbox.plan.apt import SHARED_ARCHIVES, suites_of
    from rlbox.plan.image import torch_groups
    from rlbox.plan.mirrors import archive_url, archives, oci_places
    from rlbox.plan.sources import plan_sources

    site = probe_site()
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
        locator=Locator(profile, machine, new_client(site), choice=choice),
        site=site,
        store=Store(store_folder(None)),
        images=oci_places(target.base.image, profile, choice) if target.base.image else (),
    )


def locator(app: App, sources: str, files: Sequence[Artifact] = ()) -> Locator:
    """Return who knows where the files of a lock are; a mirror that is passed over is said."""
    from rlbox.act.mirrors import Locator, new_client, probe_machine
    from rlbox.act.site import probe_site

    site = probe_site()
    profile, choice = live_sources(app, sources, site, files)
    return Locator(
        profile,
        probe_machine(site),
        new_client(site),
        choice=choice,
        on_skip=lambda mirror, reason: app.say(f"{mirror} is passed over: {reason}"),
    )


def build_env(
    app: App, plan: ImagePlan, sources: str, site: SiteFacts, files: Sequence[Artifact] = ()
) -> Mapping[str, str]:
    """Return the settings of pip and uv in build steps."""
    from rlbox.plan.sources import plan_sources

    _, choice = live_sources(app, sources, site, files)
    return plan_sources(plan.torch_groups, site, choice).env


def live_sources(app: App, sources: str, site: SiteFacts, files: Sequence[Artifact] = ()) -> tuple[Profile, Choice]:
    """Return a sources profile and the order of its mirrors now; dead and outdated ones are said.

    Parameters
    ----------
    files
        Locked files: a mirror that lists none of its kind counts as dead.
    """
    import datetime

    from rlbox.act.mirror_choice import choose_mirrors
    from rlbox.spec.load import load_profile

    profile = load_profile(app.project, sources)
    choice = choose_mirrors(profile, site, files)
    for mirror, reason in choice.skipped:
        app.say(f"{mirror} is passed over: {reason}")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    old = dict.fromkeys(rule.title for rule in profile.rule if rule.expires and rule.expires < today)
    if old:
        app.say(f"profile {profile.name}: what it says of {', '.join(old)} is past its date; `rlbox mirrors list`")
    return profile, choice


@contextmanager
def unreached_explained(sources: str) -> Iterator[None]:
    """Add to a failure that is about a host what to write into the profile `sources` about it."""
    from rlbox.plan.unreached import rule_to_add, unreached_host

    try:
        yield
    except WorkFailed as error:
        host = unreached_host(error.what.splitlines())
        if not host:
            raise
        step = rule_to_add(host, sources) + (f"\n         {error.next_step}" if error.next_step else "")
        raise WorkFailed(error.what, where=error.where, next_step=step) from error


def fetch_base_image(app: App, lock: Lock, store: Store, sources: str) -> tuple[Artifact, ...]:
    """Return the files of the lock's base image when the store holds them all; none for a bootstrapped base."""
    if "@" not in lock.base:
        return ()
    from rlbox.act.base_image import fetch_base
    from rlbox.act.site import probe_site
    from rlbox.plan.mirrors import oci_places
    from rlbox.spec.load import load_profile

    places = oci_places(lock.base, load_profile(app.project, sources))
    return fetch_base(lock.base, lock.platform, store, places, probe_site().ca_bundle)
