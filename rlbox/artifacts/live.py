"""Where a target's files come from on this machine: its sources profile and the machine's own settings together."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rlbox.app import App
from rlbox.artifacts.load_profile import load_profile
from rlbox.artifacts.mirror_choice import choose_mirrors
from rlbox.artifacts.mirror_search import Locator, probe_machine
from rlbox.artifacts.profile import Profile
from rlbox.artifacts.settings import Choice, plan_sources
from rlbox.artifacts.unreached import rule_to_add, unreached_host
from rlbox.errors import WorkFailed
from rlbox.system.http import create_client
from rlbox.system.network_settings import NetworkSettings, read_network_settings
from rlbox.target.artifact import Artifact, TorchGroup


def locator(app: App, sources: str, files: Sequence[Artifact] = ()) -> Locator:
    """Return who knows where the files of a lock are; a mirror that is passed over is said."""
    site = read_network_settings()
    profile, choice = live_sources(app, sources, site, files)
    return Locator(
        profile,
        probe_machine(site),
        create_client(site),
        choice=choice,
        on_skip=lambda mirror, reason: app.say(f"{mirror} is passed over: {reason}"),
    )


def build_env(
    app: App, groups: Sequence[TorchGroup], sources: str, site: NetworkSettings, files: Sequence[Artifact] = ()
) -> Mapping[str, str]:
    _, choice = live_sources(app, sources, site, files)
    return plan_sources(groups, site, choice).env


def live_sources(
    app: App, sources: str, site: NetworkSettings, files: Sequence[Artifact] = ()
) -> tuple[Profile, Choice]:
    """Return a sources profile and the order of its mirrors now; dead and outdated ones are said.

    Parameters
    ----------
    files
        Locked files: a mirror that lists none of its kind counts as dead.
    """

    profile = load_profile(app.project, sources)
    choice = choose_mirrors(profile, site, files)
    for mirror, reason in choice.skipped:
        app.say(f"{mirror} is passed over: {reason}")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    old = dict.fromkeys(rule.title for rule in profile.rule if rule.expires and rule.expires < today)
    if old:
        app.say(f"profile {profile.name}: what it says of {', '.join(old)} is past its date; `rlbox mirrors ls`")
    return profile, choice


@contextmanager
def unreached_explained(sources: str) -> Iterator[None]:
    """Add to a failure that is about a host what to write into the profile `sources` about it."""
    try:
        yield
    except WorkFailed as error:
        host = unreached_host(error.what.splitlines())
        if not host:
            raise
        step = rule_to_add(host, sources) + (f"\n         {error.next_step}" if error.next_step else "")
        raise WorkFailed(error.what, where=error.where, next_step=step) from error
