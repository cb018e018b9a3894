"""Read the pages on which mirrors ls files: PEP 691 JSON, PEP 503 HTML, and flat pages of links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from rlbox.foreign import parse_json
from rlbox.i18n import _

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One file of a page; `sha256` is empty where the page does not say it."""

    file: str
    url: str
    sha256: str = ""


def parse_page(text: str, content_type: str, url: str) -> tuple[Listed, ...]:
    """Return the files of a page in its order, with absolute addresses.

    Raises
    ------
    ValueError
        The page says that it is JSON and is none, or not that of an index.
    """
    if "json" in content_type.lower():
        return tuple(_json_files(text, url))
    parser = _Links(url)
    parser.feed(text)
    return tuple(parser.found)


def _json_files(text: str, url: str) -> Iterator[Listed]:
    data: Any = parse_json(text)
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, list):
        raise ValueError(_("no list of files in the index's JSON"))
    for file in files:
        digest = file.get("hashes", {}).get("sha256", "")
        yield Listed(file=str(file["filename"]), url=urljoin(url, str(file["url"])), sha256=str(digest))


class _Links(HTMLParser):
    """Collects the links of a page; `<base href>` counts, as PEP 503 has it."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = url
        self.found: list[Listed] = []

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
                self.found.append(Listed(file=name, url=url, sha256=digest if kind == "sha256" else ""))
