"""Find the files of a lock on mirrors; read this machine's own apt and uv settings."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from urllib.parse import urlsplit

from uv import find_uv_bin

from rlbox.artifacts.index_pages import ListedFile, UnusableMirrorError, fetch_index_page
from rlbox.artifacts.mirrors import (
    FileUrl,
    MachineSources,
    is_same_file_name,
    list_file_urls,
    list_git_urls,
    list_http_urls,
)
from rlbox.artifacts.profile import Profile
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.system.http import HttpClient
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.artifact import Artifact
from rlbox.values import Command


def probe_machine_sources(network_settings: NetworkSettings, *, probe_index: bool = True) -> MachineSources:
    """Return what this machine's clients are set to; uv is asked for its default index unless there is another."""
    asked = probe_default_python_index() if probe_index and not network_settings.index_url else ""
    return MachineSources(network_settings=network_settings, default_index=asked, archive_urls=probe_apt_archive_urls())


def probe_apt_archive_urls() -> dict[str, str]:
    """Return the archives of this machine's apt sources: the last part of their address to the address.

    A machine without apt, or with another distribution's sources, has none of Debian's: then mmdebstrap is asked for
    its own default. Empty when nobody knows.
    """
    found = _own_archives()
    return found if "debian" in found else {**_mmdebstrap_archives(), **found}


def _own_archives() -> dict[str, str]:
    if shutil.which("apt-get") is None:
        return {}
    told = run_command(Command(argv=("apt-get", "indextargets", "--format", "$(REPO_URI)"), timeout_s=60))
    urls = [line.strip().rstrip("/") for line in told.stdout.splitlines() if line.strip()]
    return {url.rpartition("/")[2]: url for url in reversed(urls)}


def _mmdebstrap_archives() -> dict[str, str]:
    """Return the archives of the source list that mmdebstrap would write; its first hook ends it after that."""
    if shutil.which("mmdebstrap") is None:
        return {}
    show = '--setup-hook=cat "$1/etc/apt/sources.list"; exit 1'
    asked = Command(argv=("mmdebstrap", "--quiet", "--variant=custom", show, "bookworm", "/dev/null"), timeout_s=60)
    told = run_command(asked)  # 1.3 lets a hook write to stdout, 0.8 (Ubuntu 22.04) to stderr
    urls = re.findall(r"^deb (?:\[[^\]]*\] )?(\S+) ", told.stdout + told.stderr, re.MULTILINE)
    return {url.rstrip("/").rpartition("/")[2]: url.rstrip("/") for url in reversed(urls)}


def probe_default_python_index() -> str:
    """Return the index that uv reads when nothing is set; empty when this uv does not say it."""
    argv = (find_uv_bin(), "pip", "compile", "--offline", "--emit-index-url", "--no-header", "-")
    told = run_command(Command(argv=argv, cwd="/", timeout_s=20)).stdout.splitlines()
    return next((line.partition(" ")[2].strip() for line in told if line.startswith("--index-url ")), "")


class FileLocator:
    """Knows where the files of a lock are; may be asked from many threads.

    `on_skip`: Called once for each mirror and reason when a place is passed over.
    """

    def __init__(
        self,
        profile: Profile,
        machine: MachineSources,
        http: HttpClient,
        *,
        on_skip: Callable[[str, str], None] = lambda mirror, reason: None,
    ) -> None:
        self._profile, self._machine = profile, machine
        self._http = http
        self.on_skip = on_skip
        self._lock = threading.Lock()
        self._pages: dict[str, Future[tuple[ListedFile, ...]]] = {}
        self.skipped_mirrors: list[tuple[str, str]] = []
        self._dead: set[str] = set()

    def list_urls(self, artifact: Artifact) -> Iterator[FileUrl]:
        """Yield the addresses of a file in fail-over order; pages are read when their turn comes, and once.

        A `git` artifact has none: see `list_git_urls`. Names decide; whoever fetches compares the sha256.
        """
        for source in list_file_urls(artifact, self._profile, self._machine):
            if _host(source.url) in self._dead:
                continue
            if not source.page_kind:
                yield source
                continue
            try:
                yield from self._listed(source, artifact)
            except UnusableMirrorError as error:
                if error.is_unreachable:
                    self._dead.add(_host(source.url))
                if not source.url.startswith("file:"):  # a folder of this machine need not have every file
                    self.report_skip(source.mirror, str(error))

    def list_http_urls(self, url: str) -> tuple[FileUrl, ...]:
        return list_http_urls(url, self._profile)

    def list_git_urls(self, url: str) -> tuple[FileUrl, ...]:
        return list_git_urls(url, self._profile)

    def report_skip(self, mirror: str, reason: str) -> None:
        """Tell that a mirror is passed over; the same reason is told once."""
        with self._lock:
            if (mirror, reason) in self.skipped_mirrors:
                return
            self.skipped_mirrors.append((mirror, reason))
        self.on_skip(mirror, reason)

    def _listed(self, source: FileUrl, artifact: Artifact) -> Iterator[FileUrl]:
        listed = [file for file in self.fetch_page_once(source.url) if is_same_file_name(file.file, artifact.file)]
        if not listed:
            raise UnusableMirrorError(_("does not list {file}").format(file=artifact.file))
        for file in listed:
            if file.sha256 and file.sha256 != artifact.sha256:
                self.report_skip(source.mirror, f"lists {artifact.file} with another sha256 than the lock")
            else:
                yield replace(source, url=file.url, page_kind="", listed_sha256=file.sha256)

    def fetch_page_once(self, url: str) -> tuple[ListedFile, ...]:
        """Return the files that the page at `url` lists; read once, though many threads ask.

        Raises UnusableMirrorError: no such page, no answer in time, or something else than a list of files.
        """
        with self._lock:
            known = self._pages.get(url)
            mine = known is None
            future = self._pages.setdefault(url, Future())
        if mine:
            try:
                future.set_result(fetch_index_page(self._http, url))
            except BaseException as error:
                future.set_exception(error)
        return future.result()


def _host(url: str) -> str:
    return urlsplit(url).netloc
