"""Pages on which mirrors list files: PEP 691 JSON, PEP 503 HTML, and flat pages of links."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from rlbox.amounts import limit_text
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.http import HttpClient, NoResponseError, explain_no_response

INDEX_ACCEPT_HEADER = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """One file of a page; `sha256` is empty where the page does not say it."""

    file: str
    url: str
    sha256: str = ""


def parse_index_page(page: str, content_type: str, page_url: str) -> tuple[ListedFile, ...]:
    """Return the files of a page in its order, with absolute addresses.

    Raises ValueError: the page says that it is JSON and is none, or not that of an index.
    """
    if "json" in content_type.lower():
        return tuple(_json_files(page, page_url))
    parser = _Links(page_url)
    parser.feed(page)
    return tuple(parser.found)


def _json_files(text: str, url: str) -> Iterator[ListedFile]:
    data: Any = parse_json(text)
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, list):
        raise ValueError(_("no list of files in the index's JSON"))
    for file in files:
        digest = file.get("hashes", {}).get("sha256", "")
        yield ListedFile(file=str(file["filename"]), url=urljoin(url, str(file["url"])), sha256=str(digest))


class _Links(HTMLParser):
    """Collects the links of a page; `<base href>` counts, as PEP 503 has it."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = url
        self.found: list[ListedFile] = []

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
                self.found.append(ListedFile(file=name, url=url, sha256=digest if kind == "sha256" else ""))


_PAGE_S = 30.0  # for a whole page
_PAGE_BYTES = 64 << 20
_HEADERS = {"Accept": INDEX_ACCEPT_HEADER, "Accept-Encoding": "gzip, deflate"}


class UnusableMirrorError(Exception):
    """A mirror's answer cannot be used; the text says why. `is_unreachable`: nothing came, whatever was asked."""

    def __init__(self, reason: str, *, is_unreachable: bool = False) -> None:
        super().__init__(reason)
        self.is_unreachable = is_unreachable


def fetch_index_page(http: HttpClient, page_url: str) -> tuple[ListedFile, ...]:
    """Return the files that the page at `page_url` lists; `file:` addresses are folders of this machine.

    Raises UnusableMirrorError: no such page, no answer in time, or something else than a list of files.
    """
    parts = urlsplit(page_url)
    if parts.scheme == "file":
        text, kind, final = _read_folder(Path(unquote(parts.path))), "text/html", page_url
    else:
        text, kind, final = _read_http(http, page_url)
    try:
        return parse_index_page(text, kind, final)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableMirrorError(_("its page is no list of files: {error}").format(error=error)) from error


def _read_folder(directory: Path) -> str:
    """Return the page of a folder: its `index.html`, or a page made of its files."""
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
                            count=len(body), page_s=limit_text(_PAGE_S)
                        ),
                        is_unreachable=True,
                    )
            return body.decode("utf-8", "replace"), answer.headers.get("content-type", ""), answer.url
    except NoResponseError as error:
        raise UnusableMirrorError(explain_no_response(error), is_unreachable=error.kind != "address") from error
