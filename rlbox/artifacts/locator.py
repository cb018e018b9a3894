"""Find the files of a lock on the mirrors of a sources profile, by this machine's own apt and uv settings.

A mirror that does not offer a locked file is left out.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from uv import find_uv_bin

from rlbox.amounts import align_translated, duration_text_precise_below_minute, exact_duration_text
from rlbox.app import App
from rlbox.artifacts.mirrors import (
    FILE_URL_KINDS,
    SHARED_ARCHIVES,
    DownloadLocation,
    MachineSourceSettings,
    PipUvEnvAndLocalWheels,
    explain_bad_response,
    is_same_unquoted_file_name,
    iter_download_locations,
    list_git_mirror_urls_or_original,
    map_suites_to_archive_names,
    merge_profile_apt_urls_over_machine,
    plan_pip_uv_env_and_local_wheels,
    resolve_apt_archive_url_or_empty,
)
from rlbox.artifacts.profile import MirrorRule, Profile, load_profile
from rlbox.i18n import _, join
from rlbox.system.command import run_command
from rlbox.system.http import HttpClient, NoFullResponseError, create_netrc_client, describe_response_error
from rlbox.system.network_settings import NetworkSettings, read_pip_and_proxy_settings
from rlbox.target.artifact import Artifact, list_pytorch_index_groups
from rlbox.target.target import Target
from rlbox.values import Command


@dataclass(frozen=True, kw_only=True)
class IndexPageFile:
    """One file of a page; `sha256` is empty where the page does not say it."""

    file: str
    url: str
    sha256: str = ""


class _Links(HTMLParser):
    """Collects the links of a page; `<base href>` counts, as PEP 503 has it."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = url
        self.found: list[IndexPageFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if not href:
            return
        if tag == "base":
            self._base = urljoin(self._base, href)
        elif tag == "a":
            url, fragment = urldefrag(urljoin(self._base, href.strip()))
            kind, __, digest = fragment.partition("=")
            name = unquote(urlsplit(url).path.rpartition("/")[2])
            if name:
                self.found.append(IndexPageFile(file=name, url=url, sha256=digest if kind == "sha256" else ""))


_PAGE_S = 30.0  # for a whole page
_PAGE_BYTES = 64 << 20
_HEADERS = {"Accept": "application/vnd.pypi.simple.v1+html, text/html;q=0.5", "Accept-Encoding": "gzip, deflate"}


class UnusableMirrorError(Exception):
    """A mirror's answer cannot be used; the text says why. `is_unreachable`: nothing came, whatever was asked."""

    def __init__(self, reason: str, *, is_unreachable: bool = False) -> None:
        super().__init__(reason)
        self.is_unreachable = is_unreachable


def fetch_index_page_files(http: HttpClient, page_url: str) -> tuple[IndexPageFile, ...]:
    """Return the files that the page at `page_url` links to (PEP 503).

    Raises UnusableMirrorError: no such page, or no answer in time; one that trickles in is given up after 30 s.
    """
    end = time.monotonic() + _PAGE_S
    try:
        with http.stream("GET", page_url, headers=_HEADERS) as answer:
            if answer.status != 200:
                raise UnusableMirrorError(
                    _("answered {status} for {path}").format(status=answer.status, path=urlsplit(page_url).path)
                )
            body = bytearray()
            for piece in answer.iter_bytes(decode=True):
                body += piece
                if time.monotonic() > end or len(body) > _PAGE_BYTES:
                    raise UnusableMirrorError(
                        _("sends its page too slowly: {count} bytes in {page_s}").format(
                            count=len(body), page_s=exact_duration_text(_PAGE_S)
                        ),
                        is_unreachable=True,
                    )
            parser = _Links(answer.url)
            parser.feed(body.decode("utf-8", "replace"))
            return tuple(parser.found)
    except NoFullResponseError as error:
        raise UnusableMirrorError(describe_response_error(error), is_unreachable=error.kind != "address") from error


def probe_machine_source_settings(
    network_settings: NetworkSettings, *, ask_uv_for_index: bool = True
) -> MachineSourceSettings:
    """Return what this machine's clients are set to; uv is asked for its default index unless there is another."""
    asked = ask_uv_for_index_url_or_empty() if ask_uv_for_index and not network_settings.index_url else ""
    return MachineSourceSettings(
        network_settings=network_settings,
        default_index=asked,
        url_by_apt_archive=probe_apt_or_mmdebstrap_url_by_archive(),
    )


def probe_apt_or_mmdebstrap_url_by_archive() -> dict[str, str]:
    """Return the archives of this machine's apt sources: the last part of their address to the address.

    A machine without apt, or with another distribution's sources, has none of Debian's: then mmdebstrap is asked for
    its own default. Empty when nobody knows.
    """
    urls: list[str] = []
    if shutil.which("apt-get"):
        targets = Command(argv=("apt-get", "indextargets", "--format", "$(REPO_URI)"), timeout_s=60)
        urls = run_command(targets).stdout.split()
    if not any(url.rstrip("/").endswith("/debian") for url in urls) and shutil.which("mmdebstrap"):
        # the source list that mmdebstrap would write; its first hook ends it after that
        show = '--setup-hook=cat "$1/etc/apt/sources.list"; exit 1'
        sources = Command(
            argv=("mmdebstrap", "--quiet", "--variant=custom", show, "bookworm", "/dev/null"), timeout_s=60
        )
        outcome = run_command(sources)  # 1.3 lets a hook write to stdout, 0.8 (Ubuntu 22.04) to stderr
        urls += re.findall(r"^deb (?:\[[^\]]*\] )?(\S+) ", outcome.stdout + outcome.stderr, re.MULTILINE)
    return {url.rstrip("/").rpartition("/")[2]: url.rstrip("/") for url in reversed(urls)}


def ask_uv_for_index_url_or_empty() -> str:
    """Return the index that uv reads when nothing is set; empty when this uv does not say it."""
    argv = (find_uv_bin(), "pip", "compile", "--offline", "--emit-index-url", "--no-header", "-")
    told = run_command(Command(argv=argv, cwd="/", timeout_s=20)).stdout.splitlines()
    return next((line.partition(" ")[2].strip() for line in told if line.startswith("--index-url ")), "")


class MirrorUrlFinder:
    """Knows where the files of a lock are; may be asked from many threads.

    `on_skip`: Called once for each mirror and reason when a place is passed over.
    """

    def __init__(
        self,
        profile: Profile,
        machine: MachineSourceSettings,
        http: HttpClient,
        *,
        on_skip: Callable[[str, str], None] = lambda mirror, reason: None,
    ) -> None:
        self._profile, self._machine = profile, machine
        self._http = http
        self.on_skip = on_skip
        self._lock = threading.Lock()
        self._pages: dict[str, tuple[IndexPageFile, ...]] = {}
        self.skipped_mirrors: list[tuple[str, str]] = []
        self._dead: set[str] = set()

    def find_ordered_urls_reading_index_pages(self, artifact: Artifact) -> Iterator[DownloadLocation]:
        """Yield the addresses of a file in fail-over order; pages are read when their turn comes, and once.

        A `git` artifact has none: see `list_git_mirror_urls_or_original`. Names decide; whoever fetches compares the
        sha256.
        """
        for source in iter_download_locations(artifact, self._profile, self._machine):
            if _host(source.url) in self._dead:
                continue
            if not source.page_at_url:
                yield source
                continue
            try:
                yield from self._listed(source, artifact)
            except UnusableMirrorError as error:
                if error.is_unreachable:
                    self._dead.add(_host(source.url))
                self.record_and_report_skipped_mirror(source.mirror, str(error))

    def list_git_urls(self, url: str) -> tuple[DownloadLocation, ...]:
        return list_git_mirror_urls_or_original(url, self._profile)

    def record_and_report_skipped_mirror(self, mirror: str, reason: str) -> None:
        with self._lock:
            if (mirror, reason) in self.skipped_mirrors:
                return
            self.skipped_mirrors.append((mirror, reason))
        self.on_skip(mirror, reason)

    def _listed(self, source: DownloadLocation, artifact: Artifact) -> Iterator[DownloadLocation]:
        listed = [file for file in self._fetch_page(source.url) if is_same_unquoted_file_name(file.file, artifact.file)]
        if not listed:
            raise UnusableMirrorError(_("does not list {file}").format(file=artifact.file))
        for file in listed:
            if file.sha256 and file.sha256 != artifact.sha256:
                self.record_and_report_skipped_mirror(
                    source.mirror, _("lists {file} with another sha256 than the lock").format(file=artifact.file)
                )
            else:
                yield replace(source, url=file.url, page_at_url="")

    def _fetch_page(self, url: str) -> tuple[IndexPageFile, ...]:
        if url not in self._pages:  # two threads may both read it: no harm
            self._pages[url] = fetch_index_page_files(self._http, url)
        return self._pages[url]


def _host(url: str) -> str:
    return urlsplit(url).netloc


PROBE_TIMEOUT_S = 3.0
_PARALLEL_PROBES = 8
# Kinds of which one address goes into a resolver's or a build's settings; the others fail over file by file.
_ONE_ADDRESS = ("apt", "python", "torch-wheels")


@dataclass(frozen=True, kw_only=True)
class MirrorProbe:
    """How one rule did; `fault` says why it is of no use, None when it offers `file`."""

    kind: str
    mirror: str
    file: str
    fault: str | None
    seconds: float


def pick_smallest_match(rule: MirrorRule, artifacts: Iterable[Artifact]) -> Artifact | None:
    kind = "http" if rule.kind in FILE_URL_KINDS else rule.kind
    found = [
        artifact
        for artifact in artifacts
        if artifact.kind == kind and (kind != "http" or artifact.origin.startswith(rule.match))
    ]
    return min(found, key=lambda artifact: (artifact.size, artifact.file), default=None)


def drop_and_list_dead_mirrors_before_live_one(
    profile: Profile, network_settings: NetworkSettings, probe_files: Sequence[Artifact] = ()
) -> tuple[Profile, list[MirrorProbe]]:
    """Return the profile without the mirrors that do not answer, and what was wrong with them.

    Of the kinds that can have one address only, the rules are asked in turn until one answers. A kind whose mirrors are
    all dead keeps them: they may be back.

    `probe_files`: Locked files, if there are any: a mirror must offer one of them.
    """
    dead: dict[MirrorRule, MirrorProbe] = {}
    with create_netrc_client(network_settings, idle_timeout_s=PROBE_TIMEOUT_S) as http:
        for kind in _ONE_ADDRESS:
            rules = [rule for rule in profile.rule if rule.kind == kind]
            if len(rules) == 1:  # it is kept either way
                continue
            failed = {}
            for rule in rules:
                if rule.protocol == "direct":
                    break
                probe = _probe(rule, pick_smallest_match(rule, probe_files), profile, MachineSourceSettings(), http)
                if probe.fault is None:
                    break
                failed[rule] = probe
            dead |= failed if len(failed) < len(rules) else {}
    live = tuple(rule for rule in profile.rule if rule not in dead)
    return profile.model_copy(update={"rule": live}), list(dead.values())


def probe_file_mirrors(
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
        for rule in profile.rules_or_direct_rule_for(kind)
    ]
    pairs = [(rule, file) for rule in rules if (file := pick_smallest_match(rule, artifacts))]
    with (
        create_netrc_client(machine.network_settings, idle_timeout_s=PROBE_TIMEOUT_S) as http,
        ThreadPoolExecutor(_PARALLEL_PROBES) as pool,
    ):
        jobs = [pool.submit(_probe, rule, artifact, profile, machine, http) for rule, artifact in pairs]
        return tuple(job.result() for job in jobs)


def _probe(
    rule: MirrorRule, artifact: Artifact | None, profile: Profile, machine: MachineSourceSettings, http: HttpClient
) -> MirrorProbe:
    began = time.monotonic()
    if artifact is None:
        fault = _find_fault(http, f"{rule.url_without_trailing_slash}/", None)
    else:
        if rule.protocol != "direct":  # files of this machine say nothing about a mirror
            machine = MachineSourceSettings()
        fault = _find_fault_of_file(profile.model_copy(update={"rule": (rule,)}), artifact, machine, http)
    return MirrorProbe(
        kind=rule.kind,
        mirror=rule.display_name,
        file=artifact.file.rpartition("/")[2] if artifact else "",
        fault=fault,
        seconds=time.monotonic() - began,
    )


def _find_fault_of_file(
    profile: Profile, artifact: Artifact, machine: MachineSourceSettings, http: HttpClient
) -> str | None:
    """Return why the one rule of `profile` is of no use for a file; only the head of the answer is read."""
    reasons: list[str] = []
    locator = MirrorUrlFinder(profile, machine, http, on_skip=lambda mirror, reason: reasons.append(reason))
    for link in locator.find_ordered_urls_reading_index_pages(artifact):
        if link.url.startswith("file:") or not (reason := _find_fault(http, link.url, artifact)):
            return None
        reasons.append(reason)
    return join("; ", reasons) or _("no address is known")


def _find_fault(http: HttpClient, url: str, artifact: Artifact | None) -> str | None:
    """Return why an address is of no use; without a file, any answer but a server's failure will do."""
    try:
        with http.stream("GET", url) as answer:
            if artifact is None:
                why = _("answered {status} for {path}").format(status=answer.status, path=urlsplit(url).path)
                return why if answer.status >= 500 else None
            content_type = answer.headers.get("content-type", "")
            return explain_bad_response(answer.status, content_type, answer.content_length, artifact)
    except NoFullResponseError as error:
        return describe_response_error(error)


def list_unavailable_source_kinds(probes: Sequence[MirrorProbe]) -> list[str]:
    kinds = dict.fromkeys(one.kind for one in probes)
    return [kind for kind in kinds if all(one.fault for one in probes if one.kind == kind)]


def format_probes(probes: Iterable[MirrorProbe]) -> str:
    rows = [
        (one.kind, one.mirror, _("dead"), one.fault)
        if one.fault
        else (one.kind, one.mirror, duration_text_precise_below_minute(one.seconds), one.file)
        for one in probes
    ]
    return "\n".join(align_translated(rows))


def load_profile_without_dead_mirrors(
    app: App, sources_profile: str, network_settings: NetworkSettings, probe_files: Sequence[Artifact] = ()
) -> Profile:
    """Return a sources profile without its dead mirrors, which are said.

    `probe_files`: Locked files: a mirror that offers none of its kind counts as dead.
    """
    profile, dead = drop_and_list_dead_mirrors_before_live_one(
        load_profile(app.project, sources_profile), network_settings, probe_files
    )
    for probe in dead:
        app.print_status(_("{mirror} is passed over: {reason}").format(mirror=probe.mirror, reason=probe.fault))
    return profile


def create_live_url_finder(app: App, sources_profile: str, probe_files: Sequence[Artifact] = ()) -> MirrorUrlFinder:
    site = read_pip_and_proxy_settings()
    return MirrorUrlFinder(
        load_profile_without_dead_mirrors(app, sources_profile, site, probe_files),
        probe_machine_source_settings(site),
        create_netrc_client(site),
        on_skip=lambda mirror, reason: app.print_status(
            _("{mirror} is passed over: {reason}").format(mirror=mirror, reason=reason)
        ),
    )


@dataclass(frozen=True, kw_only=True)
class LockSourceSettings:
    index_settings: PipUvEnvAndLocalWheels
    url_by_apt_archive: Mapping[str, str]
    profile: Profile
    network_settings: NetworkSettings


def prepare_lock_sources(app: App, target: Target, sources_profile: str = "") -> LockSourceSettings:
    site = read_pip_and_proxy_settings()
    profile = load_profile_without_dead_mirrors(app, sources_profile or target.sources, site)
    machine = probe_machine_source_settings(site, ask_uv_for_index=False)
    if target.base.bootstrap:
        found = merge_profile_apt_urls_over_machine(
            set(map_suites_to_archive_names(target.base).values()), profile, machine
        )
    else:  # the image has source lists of its own, which a profile's mirror may stand for
        rule = profile.first_rule_unless_direct("apt")
        found = (
            {name: resolve_apt_archive_url_or_empty(rule, name, machine) for name in SHARED_ARCHIVES} if rule else {}
        )
    return LockSourceSettings(
        index_settings=plan_pip_uv_env_and_local_wheels(list_pytorch_index_groups(target), site, profile),
        url_by_apt_archive=found,
        profile=profile,
        network_settings=site,
    )
