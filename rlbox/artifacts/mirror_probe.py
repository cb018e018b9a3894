"""Measure the mirrors of a profile with locked files, and order them by what was measured."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rlbox.amounts import MIB, columns, precise_duration_text, size_text
from rlbox.app import App
from rlbox.artifacts.index_pages import UnusableMirrorError
from rlbox.artifacts.locator import FileLocator, probe_machine_sources
from rlbox.artifacts.mirrors import (
    FileUrl,
    MachineSources,
    MirrorChoice,
    find_response_error,
    list_git_urls,
    list_image_urls,
)
from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.engine.reference import parse_reference
from rlbox.engine.registry_client import Registry
from rlbox.errors import RlboxError, SpecError
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.system.files import cache_path, compute_file_sha256, write_atomic
from rlbox.system.http import HttpClient, NoResponseError, create_client, explain_no_response
from rlbox.system.json_files import read_json_object
from rlbox.system.network_settings import read_network_settings
from rlbox.target.artifact import Artifact, list_artifacts, list_base_artifacts
from rlbox.target.lock import load_lock
from rlbox.values import Command

RANKING_MAX_AGE_S = 6 * 3600
"""Seconds for which a probe decides the order of mirrors."""

QUICK_RANKING_MAX_AGE_S = 120
"""Seconds for which a quick look does."""

_OF_HTTP = ("http", "huggingface", "cuda-apt", "conda")  # their rules stand for addresses of `http` files


@dataclass(frozen=True, kw_only=True)
class MirrorProbe:
    """How one rule did; `reason` is empty when it gave the right bytes.

    `file` is what was asked for and `verified` how far its bytes were compared; times in seconds, `mib_per_s` 0 when
    the file was too small to tell.
    """

    kind: str
    mirror: str
    place: str
    file: str = ""
    verified: str = ""
    reason: str = ""
    first_byte_s: float = 0.0
    total_s: float = 0.0
    mib_per_s: float = 0.0


def format_rule_id(rule: MirrorRule) -> str:
    return rule.base_url or rule.protocol


def choose_probe_file(rule: MirrorRule, artifacts: Sequence[Artifact]) -> Artifact | None:
    kind = "http" if rule.kind in _OF_HTTP else rule.kind
    found = [
        artifact
        for artifact in artifacts
        if artifact.kind == kind and (kind not in ("http", "git") or artifact.origin.startswith(rule.match))
    ]
    return min(found, key=lambda artifact: (artifact.size, artifact.file), default=None)


def sort_probes(probes: Iterable[MirrorProbe]) -> tuple[MirrorProbe, ...]:
    return tuple(sorted(probes, key=lambda probed: (probed.kind, bool(probed.reason), probed.total_s)))


def hash_profile(profile: Profile) -> str:
    return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()


def ranking_json(profile: Profile, probes: Sequence[MirrorProbe], at: float, *, quick: bool = False) -> dict[str, Any]:
    """Return a ranking as it is remembered; `at` is the time of the probe, or of a quick look, seconds since 1970."""
    return {"profile": hash_profile(profile), "at": at, "quick": quick, "found": [asdict(probed) for probed in probes]}


def parse_ranking(ranking: Mapping[str, Any], profile: Profile, now: float) -> tuple[MirrorProbe, ...] | None:
    """Return a remembered ranking, or None when it is old, of other rules, or none at all."""
    try:
        lasts = QUICK_RANKING_MAX_AGE_S if ranking["quick"] else RANKING_MAX_AGE_S
        fresh = 0 <= now - float(ranking["at"]) < lasts and ranking["profile"] == hash_profile(profile)
        return tuple(MirrorProbe(**row) for row in ranking["found"]) if fresh else None
    except (KeyError, TypeError, ValueError):
        return None


def choose_by_probes(profile: Profile, probes: Sequence[MirrorProbe]) -> MirrorChoice:
    """Return the order that a ranking gives: live rules by their times, then those that were not probed.

    A kind whose rules are all dead keeps the profile's order: they may be back.
    """
    rules: dict[str, tuple[MirrorRule, ...]] = {}
    for kind in dict.fromkeys(rule.kind for rule in profile.rule):
        mine = {format_rule_id(rule): rule for rule in profile.rules_for(kind)}
        probed = {one.place: one for one in probes if one.kind == kind and one.place in mine}
        live = [mine[one.place] for one in sort_probes(probed.values()) if not one.reason]
        rest = [rule for place, rule in mine.items() if place not in probed]
        rules[kind] = tuple(live + rest) or profile.rules_for(kind)
    skipped = tuple((one.mirror, one.reason) for one in probes if one.reason)
    return MirrorChoice(profile_name=profile.name, rules_by_kind=rules, dead_mirrors=skipped)


def list_unavailable_source_kinds(probes: Sequence[MirrorProbe]) -> list[str]:
    kinds = dict.fromkeys(one.kind for one in probes)
    return [kind for kind in kinds if all(one.reason for one in probes if one.kind == kind)]


_AT_ONCE = 8
_SILENT_S = 10.0
_WHOLE_BYTES = 8 << 20  # a larger file is not downloaded whole
_PART_BYTES = 1 << 20
_TELLING_BYTES = 64 << 10  # less says nothing about throughput
_GIT_S = 60.0


def probe_mirrors(profile: Profile, machine: MachineSources, artifacts: Sequence[Artifact]) -> tuple[MirrorProbe, ...]:
    """Return how every rule did for which `artifacts` have a file, ranked; several are asked at once.

    Rules of kinds that the lock has no file of are left out. The machine's own settings are asked where the profile
    has no rule.
    """
    kinds = dict.fromkeys([rule.kind for rule in profile.rule] + [artifact.kind for artifact in artifacts])
    pairs = [(rule, choose_probe_file(rule, artifacts)) for kind in kinds for rule in profile.rules_for(kind)]
    with (
        create_client(machine.network_settings, idle_timeout_s=_SILENT_S) as http,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        jobs = [pool.submit(_probe, rule, artifact, profile, machine, http) for rule, artifact in pairs if artifact]
        return sort_probes(job.result() for job in jobs)


def _probe(
    rule: MirrorRule, artifact: Artifact, profile: Profile, machine: MachineSources, http: HttpClient
) -> MirrorProbe:
    blank = MirrorProbe(
        kind=rule.kind, mirror=rule.title, place=format_rule_id(rule), file=artifact.file.rpartition("/")[2]
    )
    choice = MirrorChoice(profile_name=profile.name, rules_by_kind={rule.kind: (rule,)})
    if rule.protocol != "direct":  # files of this machine say nothing about a mirror
        machine = replace(
            machine, network_settings=replace(machine.network_settings, find_links={}, extra_index_urls=())
        )
    began = time.monotonic()
    try:
        match artifact.kind:
            case "git":
                done = _probe_git(blank, artifact, profile, choice)
            case "oci":
                done = _probe_oci(blank, artifact, profile, choice, machine)
            case _:
                done = _probe_file(blank, artifact, FileLocator(profile, machine, http, choice=choice), http)
    except UnusableMirrorError as error:
        return replace(blank, reason=str(error))
    return replace(done, total_s=time.monotonic() - began)


def _probe_file(blank: MirrorProbe, artifact: Artifact, locator: FileLocator, http: HttpClient) -> MirrorProbe:
    reasons: list[str] = []
    locator.on_skip = lambda mirror, reason: reasons.append(reason)
    for link in locator.list_urls(artifact):
        try:
            if link.url.startswith("file:"):
                return _on_this_machine(blank, artifact, link)
            return _measure(blank, artifact, link, http)
        except UnusableMirrorError as error:
            reasons.append(str(error))
    raise UnusableMirrorError("; ".join(reasons) or _("no address is known"))


def _on_this_machine(blank: MirrorProbe, artifact: Artifact, link: FileUrl) -> MirrorProbe:
    path = Path(unquote(urlsplit(link.url).path))
    try:
        digest = compute_file_sha256(path)
    except OSError as error:
        raise UnusableMirrorError(f"{path}: {error.strerror}") from error
    if digest != artifact.sha256:
        raise UnusableMirrorError(_("{path} has other bytes than the lock").format(path=path))
    return replace(blank, mirror=link.mirror, verified="sha256 of the file on this machine")


def _measure(blank: MirrorProbe, artifact: Artifact, link: FileUrl, http: HttpClient) -> MirrorProbe:
    part = artifact.size > _WHOLE_BYTES
    headers = {"Range": f"bytes=0-{_PART_BYTES - 1}"} if part else {}
    digest, count, first = hashlib.sha256(), 0, 0.0
    began = time.monotonic()
    try:
        with http.stream("GET", link.url, headers=headers) as answer:
            if reason := find_response_error(
                answer.status, answer.headers.get("content-type", ""), answer.content_length, artifact
            ):
                raise UnusableMirrorError(reason)
            for piece in answer.iter_bytes():
                first = first or time.monotonic()
                digest.update(piece)
                count += len(piece)
                if count >= (_PART_BYTES if part else artifact.size + 1):
                    break
            total = answer.headers.get("content-range", "").rpartition("/")[2] or str(answer.content_length)
    except NoResponseError as error:
        raise UnusableMirrorError(explain_no_response(error)) from error
    spent = max(time.monotonic() - first, 1e-6)
    verified = _verified(artifact, link, digest.hexdigest(), part=part, total=total)
    speed = count / (1 << 20) / spent if count >= _TELLING_BYTES else 0.0
    return replace(blank, verified=verified, first_byte_s=max(first - began, 0.0), mib_per_s=speed)


def _verified(artifact: Artifact, link: FileUrl, digest: str, *, part: bool, total: str) -> str:
    """Return how far the bytes were compared with the lock; `UnusableMirrorError` when they are wrong."""
    if not part:
        if digest != artifact.sha256:
            raise UnusableMirrorError(
                _("gives wrong bytes for {file}: sha256 {digest}…, the lock has another").format(
                    file=artifact.file, digest=digest[:12]
                )
            )
        return "sha256 of the file"
    if total.isdigit() and whole_number(total) != artifact.size:
        raise UnusableMirrorError(
            _("offers {total} bytes of {file}, the lock says {size}").format(
                total=total, file=artifact.file, size=artifact.size
            )
        )
    return (
        "sha256 on its page, first MiB read"
        if link.listed_sha256
        else "length, first MiB read (its page has no sha256)"
    )


def _probe_git(blank: MirrorProbe, artifact: Artifact, profile: Profile, choice: MirrorChoice) -> MirrorProbe:
    """Fetch the locked commit without its files: git itself compares the commit's bytes with its id."""
    url, __, commit = artifact.origin.partition(" ")
    address = list_git_urls(url, profile, choice)[0].url
    with tempfile.TemporaryDirectory(prefix="rlbox-probe-") as folder:
        steps = (
            ("git", "init", "--quiet", "--bare", folder),
            ("git", "-C", folder, "fetch", "--quiet", "--depth=1", "--filter=tree:0", address, commit),
        )
        for argv in steps:
            try:
                outcome = run_command(Command(argv=argv, env={"GIT_TERMINAL_PROMPT": "0"}, timeout_s=_GIT_S))
            except RlboxError as error:
                raise UnusableMirrorError(error.what) from error
            if not outcome.ok:
                raise UnusableMirrorError((outcome.stderr.strip().splitlines() or ["git failed"])[-1])
    return replace(blank, file=commit[:12], verified="commit id")


def _probe_oci(
    blank: MirrorProbe, artifact: Artifact, profile: Profile, choice: MirrorChoice, machine: MachineSources
) -> MirrorProbe:
    place = list_image_urls(artifact.origin, profile, choice)[0]
    if place.named_by != "profile" and blank.place != "direct":
        raise UnusableMirrorError(_("has no {origin} (allow-list)").format(origin=artifact.origin.partition("@")[0]))
    reference = parse_reference(place.url)
    try:
        with Registry(reference.host, ca_bundle=machine.network_settings.ca_bundle) as registry:
            registry.get_manifest(reference.repository, reference.digest)
    except RlboxError as error:
        raise UnusableMirrorError(error.what) from error
    return replace(blank, verified="sha256 of the manifest")


def probe_and_save_mirrors(app: App, profile: Profile, target_name: str) -> tuple[MirrorProbe, ...]:
    """Return how every mirror did for a file of the target's lock, ranked; the order is remembered."""
    files = load_locked_files(app, target_name)
    found = probe_mirrors(profile, probe_machine_sources(read_network_settings()), files)
    save_ranking(profile, found)
    return found


def load_locked_files(app: App, target_name: str) -> tuple[Artifact, ...]:
    lock = load_lock(app.project.lock_file(target_name))
    if lock is None:
        raise SpecError(
            _("target {target} has no lock, and so no known file").format(target=target_name),
            next_step=f"rlbox lock {target_name}",
        )
    return (*list_artifacts(lock), *list_base_artifacts(lock.base))


def save_ranking(profile: Profile, probes: Sequence[MirrorProbe], *, quick: bool = False) -> None:
    """Remember a ranking for the commands that follow; a full or read-only cache folder is no error."""
    try:
        write_atomic(_memory(profile), json.dumps(ranking_json(profile, probes, time.time(), quick=quick)))
    except OSError:
        return


def load_ranking(profile: Profile) -> tuple[MirrorProbe, ...] | None:
    data = read_json_object(_memory(profile), follow_links=True)
    return parse_ranking(data, profile, time.time()) if data else None


def _memory(profile: Profile) -> Path:
    return cache_path("mirrors", f"{profile.name}.json")


def mirror_rules_json(profile: Profile, ranking: Sequence[MirrorProbe], today: str) -> list[dict[str, str]]:
    """Return the rules in the order in which they are tried, with what is known of them; `today` as 2025-12-31."""
    choice = choose_by_probes(profile, ranking)
    known = {(one.kind, one.place): one for one in ranking}
    return [
        _row(rule, known.get((rule.kind, format_rule_id(rule))), today)
        for kind, rules in sorted(choice.rules_by_kind.items())
        for rule in (*rules, *(rule for rule in profile.rules_for(kind) if rule not in rules))
    ]


def _row(rule: MirrorRule, probed: MirrorProbe | None, today: str) -> dict[str, str]:
    expires = rule.expires.isoformat() if rule.expires else ""
    states = [f"dead: {probed.reason}" if probed.reason else precise_duration_text(probed.total_s)] if probed else []
    states += [f"expired {expires}: read it up again"] if expires and expires < today else []
    return {
        "kind": rule.kind,
        "mirror": rule.title,
        "protocol": rule.protocol,
        "url": rule.base_url,
        "match": rule.match,
        "checked": rule.checked.isoformat() if rule.checked else "",
        "expires": expires,
        "state": "; ".join(states) or "not probed",
    }


def format_mirror_rules(rules: Iterable[dict[str, str]]) -> str:
    """Return the rows as a table; empty when there is none."""
    cells = (
        (
            row["kind"],
            row["mirror"],
            row["protocol"],
            (row["url"] or "-"),
            row["state"],
        )
        for row in rules
    )
    return "\n".join(columns(cells))


def format_probes(probes: Iterable[MirrorProbe]) -> str:
    return "\n".join(columns(map(_cells, probes)))


def _cells(one: MirrorProbe) -> tuple[str, ...]:
    if one.reason:
        return (one.kind, one.mirror, "dead", "", "", one.reason)
    speed = f"{size_text(one.mib_per_s * MIB)}/s" if one.mib_per_s else ""
    return (
        one.kind,
        one.mirror,
        precise_duration_text(one.total_s),
        precise_duration_text(one.first_byte_s),
        speed,
        f"{one.file}: {one.verified}",
    )
