"""Find the files of a lock on mirrors, whose pages list them; read this machine's own apt and uv settings."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from uv import find_uv_bin

from rlbox.amounts import exact_duration_text
from rlbox.artifacts.mirrors import (
    FileUrl,
    MachineSourceSettings,
    is_same_file_name,
    list_file_urls,
    list_git_urls,
    list_http_urls,
)
from rlbox.artifacts.profile import Profile
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.system.http import HttpClient, NoResponseError, explain_no_response
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.artifact import Artifact
from rlbox.values import Command

INDEX_ACCEPT_HEADER = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, kw_only=True)
class IndexPageFile:
    """One file of a page; `sha256` is empty where the page does not say it."""

    file: str
    url: str
    sha256: str = ""


def _parse_index_page(page: str, content_type: str, page_url: str) -> tuple[IndexPageFile, ...]:
    """Return the files of a page in its order, with absolute addresses.

    Raises ValueError: the page says that it is JSON and is none, or not that of an index.
    """
    if "json" in content_type.lower():
        return tuple(_json_files(page, page_url))
    parser = _Links(page_url)
    parser.feed(page)
    return tuple(parser.found)


def _json_files(text: str, url: str) -> Iterator[IndexPageFile]:
    data: Any = parse_json(text)
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, list):
        raise ValueError(_("no list of files in the index's JSON"))
    for file in files:
        digest = file.get("hashes", {}).get("sha256", "")
        yield IndexPageFile(file=str(file["filename"]), url=urljoin(url, str(file["url"])), sha256=str(digest))


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
_HEADERS = {"Accept": INDEX_ACCEPT_HEADER, "Accept-Encoding": "gzip, deflate"}


class UnusableMirrorError(Exception):
    """A mirror's answer cannot be used; the text says why. `is_unreachable`: nothing came, whatever was asked."""

    def __init__(self, reason: str, *, is_unreachable: bool = False) -> None:
        super().__init__(reason)
        self.is_unreachable = is_unreachable


def fetch_index_page(http: HttpClient, page_url: str) -> tuple[IndexPageFile, ...]:
    """Return the files that the page at `page_url` lists; `file:` addresses are folders of this machine.

    Raises UnusableMirrorError: no such page, no answer in time, or something else than a list of files.
    """
    parts = urlsplit(page_url)
    if parts.scheme == "file":
        text, kind, final = _read_folder(Path(unquote(parts.path))), "text/html", page_url
    else:
        text, kind, final = _read_http(http, page_url)
    try:
        return _parse_index_page(text, kind, final)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableMirrorError(_("its page is not a list of files: {error}").format(error=error)) from error


def _read_folder(directory: Path) -> str:
    try:
        index = directory / "index.html"
        if index.is_file():
            return index.read_text("utf-8", "replace")
        return "".join(f'<a href="{quote(path.name)}">' for path in sorted(directory.iterdir()) if path.is_file())
    except OSError as error:
        raise UnusableMirrorError(f"{directory}: {error.strerror}") from error


def _read_http(http: HttpClient, url: str) -> tuple[str, str, str]:
    """Return text, content type and final address of a page; a page that trickles in is given up after 30 s."""
    end = time.monotonic() + _PAGE_S
    try:
        with http.stream("GET", url, headers=_HEADERS) as answer:
            if answer.status != 200:
                raise UnusableMirrorError(
                    _("answered {status} for {path}").format(status=answer.status, path=urlsplit(url).path)
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
            return body.decode("utf-8", "replace"), answer.headers.get("content-type", ""), answer.url
    except NoResponseError as error:
        raise UnusableMirrorError(explain_no_response(error), is_unreachable=error.kind != "address") from error


def read_machine_source_settings(
    network_settings: NetworkSettings, *, ask_uv_for_index: bool = True
) -> MachineSourceSettings:
    """Return what this machine's clients are set to; uv is asked for its default index unless there is another."""
    asked = ask_uv_for_default_index() if ask_uv_for_index and not network_settings.index_url else ""
    return MachineSourceSettings(
        network_settings=network_settings, default_index=asked, url_by_apt_archive=read_machine_apt_archive_urls()
    )


def read_machine_apt_archive_urls() -> dict[str, str]:
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


def ask_uv_for_default_index() -> str:
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
        machine: MachineSourceSettings,
        http: HttpClient,
        *,
        on_skip: Callable[[str, str], None] = lambda mirror, reason: None,
    ) -> None:
        self._profile, self._machine = profile, machine
        self._http = http
        self.on_skip = on_skip
        self._lock = threading.Lock()
        self._pages: dict[str, Future[tuple[IndexPageFile, ...]]] = {}
        self.skipped_mirrors: list[tuple[str, str]] = []
        self._dead: set[str] = set()

    def look_up_urls(self, artifact: Artifact) -> Iterator[FileUrl]:
        """Yield the addresses of a file in fail-over order; pages are read when their turn comes, and once.

        A `git` artifact has none: see `list_git_urls`. Names decide; whoever fetches compares the sha256.
        """
        for source in list_file_urls(artifact, self._profile, self._machine):
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
                if not source.url.startswith("file:"):  # a folder of this machine need not have every file
                    self.record_skipped_mirror(source.mirror, str(error))

    def list_http_urls(self, url: str) -> tuple[FileUrl, ...]:
        return list_http_urls(url, self._profile)

    def list_git_urls(self, url: str) -> tuple[FileUrl, ...]:
        return list_git_urls(url, self._profile)

    def record_skipped_mirror(self, mirror: str, reason: str) -> None:
        """Tell that a mirror is passed over; the same reason is told once."""
        with self._lock:
            if (mirror, reason) in self.skipped_mirrors:
                return
            self.skipped_mirrors.append((mirror, reason))
        self.on_skip(mirror, reason)

    def _listed(self, source: FileUrl, artifact: Artifact) -> Iterator[FileUrl]:
        listed = [file for file in self._fetch_page_once(source.url) if is_same_file_name(file.file, artifact.file)]
        if not listed:
            raise UnusableMirrorError(_("does not list {file}").format(file=artifact.file))
        for file in listed:
            if file.sha256 and file.sha256 != artifact.sha256:
                self.record_skipped_mirror(source.mirror, f"lists {artifact.file} with another sha256 than the lock")
            else:
                yield replace(source, url=file.url, page_at_url="", listed_sha256=file.sha256)

    def _fetch_page_once(self, url: str) -> tuple[IndexPageFile, ...]:
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
