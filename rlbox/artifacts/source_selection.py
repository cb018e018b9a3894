"""Choose the mirrors that a command uses now: by the last probe, or by a quick look at them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlbox.app import App
from rlbox.artifacts.egress import rule_to_add, unreached_host
from rlbox.artifacts.locator import Locator, probe_machine
from rlbox.artifacts.mirror_probe import Probed, choice_of, place_of, probe_object, remember_ranking, remembered_ranking
from rlbox.artifacts.mirrors import (
    SHARED_ARCHIVES,
    Choice,
    FileAddress,
    Machine,
    SourcePlan,
    archive_url,
    archives,
    oci_places,
    plan_sources,
    refusal,
    suites_of,
)
from rlbox.artifacts.object_store import Store, store_folder
from rlbox.artifacts.profile import Profile, Rule, load_profile
from rlbox.errors import WorkFailed
from rlbox.system.http import HttpClient, NoResponseError, create_client, explain_no_response
from rlbox.system.network_settings import NetworkSettings, read_network_settings
from rlbox.target.artifact import Artifact, TorchGroup, torch_groups
from rlbox.target.target import Target

QUICK_S = 3.0
# Kinds of which one address goes into a resolver's or a build's settings; the others fail over file by file.
_ONE_ADDRESS = ("apt", "python", "torch-wheels")


def choose_mirrors(profile: Profile, site: NetworkSettings, artifacts: Sequence[Artifact] = ()) -> Choice:
    """Return the rules of a profile in the order in which they are to be tried now.

    A ranking by `rlbox mirrors probe` decides for six hours. Without one, the rules of the kinds that can have one
    address only are asked in turn, 3 s each, until one answers; those that do not are in `skipped`, and are left alone
    for two minutes. A profile without rules costs nothing.

    Parameters
    ----------
    artifacts
        Locked files, if there are any: a mirror must list one of them.
    """
    if not profile.rule:
        return Choice(profile=profile.name)
    if (known := remembered_ranking(profile)) is not None:
        return choice_of(profile, known)
    found: list[Probed] = []
    with create_client(site, silent_s=QUICK_S) as http:
        for kind in _ONE_ADDRESS:
            for rule in profile.rules(kind):
                reason = _look(rule, probe_object(rule, artifacts), profile, http)
                if not reason:
                    break
                found.append(Probed(kind=kind, mirror=rule.title, place=place_of(rule), reason=reason))
    remember_ranking(profile, found, quick=True)
    return choice_of(profile, found)


def _look(rule: Rule, artifact: Artifact | None, profile: Profile, http: HttpClient) -> str:
    """Return why a rule is of no use now, or nothing; only the head of a file is read."""
    if rule.protocol == "direct":
        return ""
    if artifact is None:
        return _head(http, f"{rule.base}/", None)
    reasons: list[str] = []
    choice = Choice(profile=profile.name, rules={rule.kind: (rule,)})
    locator = Locator(profile, Machine(), http, choice=choice, on_skip=lambda mirror, reason: reasons.append(reason))
    for link in locator.links(artifact):
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
            return refusal(answer.status, answer.headers.get("content-type", ""), answer.content_length, artifact)
    except NoResponseError as error:
        return explain_no_response(error)


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
