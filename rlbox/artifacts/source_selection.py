"""Ask the mirrors of a sources profile for a locked file each, and leave out those that do not offer it."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from rlbox.amounts import columns, precise_duration_text
from rlbox.app import App
from rlbox.artifacts.locator import FileLocator, read_machine_source_settings
from rlbox.artifacts.mirrors import (
    SHARED_ARCHIVES,
    FileUrl,
    MachineSourceSettings,
    PackageIndexSettings,
    build_archive_url,
    find_response_error,
    list_image_urls,
    map_archive_names_to_urls,
    map_suites_to_archive_names,
    plan_package_indexes,
)
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.profile import MirrorRule, Profile, load_profile
from rlbox.system.http import HttpClient, NoResponseError, create_client, explain_no_response
from rlbox.system.network_settings import NetworkSettings, read_pip_and_proxy_settings
from rlbox.target.artifact import Artifact, list_torch_wheel_groups
from rlbox.target.target import Target

PROBE_TIMEOUT_S = 3.0
_PARALLEL_PROBES = 8
_HTTP_KINDS = ("http", "huggingface", "cuda-apt", "conda")  # their rules stand for addresses of `http` files
# Kinds of which one address goes into a resolver's or a build's settings; the others fail over file by file.
_ONE_ADDRESS = ("apt", "python", "torch-wheels")


@dataclass(frozen=True, kw_only=True)
class MirrorProbe:
    """How one rule did; `reason` says why it is of no use, None when it offers `file`."""

    kind: str
    mirror: str
    file: str
    reason: str | None
    seconds: float


def choose_probe_file(rule: MirrorRule, artifacts: Iterable[Artifact]) -> Artifact | None:
    """Return the smallest file that a rule stands for."""
    kind = "http" if rule.kind in _HTTP_KINDS else rule.kind
    found = [
        artifact
        for artifact in artifacts
        if artifact.kind == kind and (kind != "http" or artifact.origin.startswith(rule.match))
    ]
    return min(found, key=lambda artifact: (artifact.size, artifact.file), default=None)


class LiveAndDeadMirrors(NamedTuple):
    live_profile: Profile
    failed_probes: list[MirrorProbe]


def drop_dead_mirrors(
    profile: Profile, network_settings: NetworkSettings, probe_files: Sequence[Artifact] = ()
) -> LiveAndDeadMirrors:
    """Return the profile without the mirrors that do not answer, and what was wrong with them.

    Of the kinds that can have one address only, the rules are asked in turn until one answers. A kind whose mirrors are
    all dead keeps them: they may be back.

    `probe_files`: Locked files, if there are any: a mirror must offer one of them.
    """
    dead: dict[MirrorRule, MirrorProbe] = {}
    with create_client(network_settings, idle_timeout_s=PROBE_TIMEOUT_S) as http:
        for kind in _ONE_ADDRESS:
            rules = [rule for rule in profile.rule if rule.kind == kind]
            if len(rules) == 1:  # it is kept either way
                continue
            failed = {}
            for rule in rules:
                if rule.protocol == "direct":
                    break
                probe = _probe(rule, choose_probe_file(rule, probe_files), profile, MachineSourceSettings(), http)
                if probe.reason is None:
                    break
                failed[rule] = probe
            dead |= failed if len(failed) < len(rules) else {}
    live = tuple(rule for rule in profile.rule if rule not in dead)
    return LiveAndDeadMirrors(profile.model_copy(update={"rule": live}), list(dead.values()))


def probe_mirrors(
    profile: Profile, machine: MachineSourceSettings, artifacts: Sequence[Artifact]
) -> tuple[MirrorProbe, ...]:
    """Return how every rule did that stands for one of `artifacts`, in the profile's order.

    The machine's own settings are asked where the profile has no rule. Git and registries are not asked: they fail over
    when they are used.
    """
    kinds = dict.fromkeys([rule.kind for rule in profile.rule] + [artifact.kind for artifact in artifacts])
    rules = [
        rule
        for kind in kinds
        if kind not in ("git", "oci", "compiled")
        for rule in profile.rules_or_direct_default_for(kind)
    ]
    pairs = [(rule, file) for rule in rules if (file := choose_probe_file(rule, artifacts))]
    with (
        create_client(machine.network_settings, idle_timeout_s=PROBE_TIMEOUT_S) as http,
        ThreadPoolExecutor(_PARALLEL_PROBES) as pool,
    ):
        jobs = [pool.submit(_probe, rule, artifact, profile, machine, http) for rule, artifact in pairs]
        return tuple(job.result() for job in jobs)


def _probe(
    rule: MirrorRule, artifact: Artifact | None, profile: Profile, machine: MachineSourceSettings, http: HttpClient
) -> MirrorProbe:
    began = time.monotonic()
    if artifact is None:
        reason = _find_fault(http, f"{rule.mirror_base_url}/", None)
    else:
        if rule.protocol != "direct":  # files of this machine say nothing about a mirror
            machine = MachineSourceSettings()
        reason = _find_fault_of_file(profile.model_copy(update={"rule": (rule,)}), artifact, machine, http)
    return MirrorProbe(
        kind=rule.kind,
        mirror=rule.title,
        file=artifact.file.rpartition("/")[2] if artifact else "",
        reason=reason,
        seconds=time.monotonic() - began,
    )


def _find_fault_of_file(
    profile: Profile, artifact: Artifact, machine: MachineSourceSettings, http: HttpClient
) -> str | None:
    """Return why the one rule of `profile` is of no use for a file; only the head of the answer is read."""
    reasons: list[str] = []
    locator = FileLocator(profile, machine, http, on_skip=lambda mirror, reason: reasons.append(reason))
    for link in locator.look_up_urls(artifact):
        if link.url.startswith("file:") or not (reason := _find_fault(http, link.url, artifact)):
            return None
        reasons.append(reason)
    return "; ".join(reasons) or "no address is known"


def _find_fault(http: HttpClient, url: str, artifact: Artifact | None) -> str | None:
    """Return why an address is of no use; without a file, any answer but a server's failure will do."""
    try:
        with http.stream("GET", url) as answer:
            if artifact is None:
                return f"answered {answer.status} for {urlsplit(url).path}" if answer.status >= 500 else None
            content_type = answer.headers.get("content-type", "")
            return find_response_error(answer.status, content_type, answer.content_length, artifact)
    except NoResponseError as error:
        return explain_no_response(error)


def list_unavailable_source_kinds(probes: Sequence[MirrorProbe]) -> list[str]:
    kinds = dict.fromkeys(one.kind for one in probes)
    return [kind for kind in kinds if all(one.reason for one in probes if one.kind == kind)]


def format_probes(probes: Iterable[MirrorProbe]) -> str:
    rows = [
        (one.kind, one.mirror, "dead", one.reason)
        if one.reason
        else (one.kind, one.mirror, precise_duration_text(one.seconds), one.file)
        for one in probes
    ]
    return "\n".join(columns(rows))


def load_profile_without_dead_mirrors(
    app: App, sources_profile: str, network_settings: NetworkSettings, probe_files: Sequence[Artifact] = ()
) -> Profile:
    """Return a sources profile without its dead mirrors; these and outdated ones are said.

    `probe_files`: Locked files: a mirror that offers none of its kind counts as dead.
    """
    profile, dead = drop_dead_mirrors(load_profile(app.project, sources_profile), network_settings, probe_files)
    for probe in dead:
        app.print_status(f"{probe.mirror} is passed over: {probe.reason}")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    old = dict.fromkeys(rule.title for rule in profile.rule if rule.expires and rule.expires < today)
    if old:
        app.print_status(
            f"profile {profile.name}: what it says of {', '.join(old)} is past its date; `rlbox mirrors ls`"
        )
    return profile


def create_file_locator(app: App, sources_profile: str, probe_files: Sequence[Artifact] = ()) -> FileLocator:
    """Return who knows where the files of a lock are; a mirror that is passed over is said."""
    site = read_pip_and_proxy_settings()
    return FileLocator(
        load_profile_without_dead_mirrors(app, sources_profile, site, probe_files),
        read_machine_source_settings(site),
        create_client(site),
        on_skip=lambda mirror, reason: app.print_status(f"{mirror} is passed over: {reason}"),
    )


@dataclass(frozen=True, kw_only=True)
class LockSources:
    """Where a lock is resolved from: settings for uv, apt archives by name, who knows the mirrors of other files.

    `base_image_urls` are the references that the base image may be pulled by; it goes into `store`, to be read.
    """

    index_settings: PackageIndexSettings
    url_by_apt_archive: Mapping[str, str]
    locator: FileLocator
    network_settings: NetworkSettings
    store: ObjectStore
    base_image_urls: Sequence[FileUrl]


def prepare_lock_sources(app: App, target: Target, sources_profile: str = "") -> LockSources:
    """Return where the target's lock is resolved from, by the profile `sources_profile` or its own."""
    site = read_pip_and_proxy_settings()
    profile = load_profile_without_dead_mirrors(app, sources_profile or target.sources, site)
    machine = read_machine_source_settings(site, ask_uv_for_index=False)
    if target.base.bootstrap:
        found = map_archive_names_to_urls(set(map_suites_to_archive_names(target.base).values()), profile, machine)
    else:  # the image has source lists of its own, which a profile's mirror may stand for
        rule = profile.first_rule_unless_direct("apt")
        found = {name: build_archive_url(rule, name, machine) for name in SHARED_ARCHIVES} if rule else {}
    return LockSources(
        index_settings=plan_package_indexes(list_torch_wheel_groups(target), site, profile),
        url_by_apt_archive=found,
        locator=FileLocator(profile, machine, create_client(site)),
        network_settings=site,
        store=ObjectStore(resolve_store_dir(None)),
        base_image_urls=list_image_urls(target.base.image, profile) if target.base.image else (),
    )
