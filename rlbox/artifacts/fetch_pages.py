"""Read the pages on which mirrors ls files."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from rlbox.amounts import limit_text
from rlbox.artifacts.pages import ACCEPT, Listed, parse_page
from rlbox.i18n import _
from rlbox.system.http import HttpClient, NoResponseError, explain_no_response

_PAGE_S = 30.0  # for a whole page
_PAGE_BYTES = 64 << 20
_HEADERS = {"Accept": ACCEPT, "Accept-Encoding": "gzip, deflate"}


class Unusable(Exception):
    """A mirror's answer cannot be used; the text says why. `dead` when nothing came, whatever was asked for."""

    def __init__(self, reason: str, *, dead: bool = False) -> None:
        super().__init__(reason)
        self.dead = dead


def read_page(http: HttpClient, url: str) -> tuple[Listed, ...]:
    """Return the files that the page at `url` lists; `file:` addresses are folders of this machine.

    Raises
    ------
    Unusable
        No such page, no answer in time, or something else than a list of files.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        text, kind, final = _read_folder(Path(unquote(parts.path))), "text/html", url
    else:
        text, kind, final = _read_http(http, url)
    try:
        return parse_page(text, kind, final)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(_("its page is no list of files: {error}").format(error=error)) from error


def _read_folder(folder: Path) -> str:
    """Return the page of a folder: its `index.html`, or a page made of its files."""
    try:
        index = folder / "index.html"
        if index.is_file():
            return index.read_text("utf-8", "replace")
        return "".join(f'<a href="{quote(path.name)}">' for path in sorted(folder.iterdir()) if path.is_file())
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror}") from error


def _read_http(http: HttpClient, url: str) -> tuple[str, str, str]:
    """Return text, content type and final address of a page; a page that trickles in is given up after 30 s."""
    end = time.monotonic() + _PAGE_S
    try:
        with http.ask("GET", url, headers=_HEADERS) as answer:
            if answer.status != 200:
                raise Unusable(_("answered {status} for {path}").format(status=answer.status, path=urlsplit(url).path))
            body = bytearray()
            for piece in answer.blocks(decode=True):
                body += piece
                if time.monotonic() > end or len(body) > _PAGE_BYTES:
                    raise Unusable(
                        _("sends its page too slowly: {count} bytes in {page_s}").format(
                            count=len(body), page_s=limit_text(_PAGE_S)
                        ),
                        dead=True,
                    )
            return body.decode("utf-8", "replace"), answer.headers.get("content-type", ""), answer.url
    except NoResponseError as error:
        raise Unusable(explain_no_response(error), dead=error.kind != "address") from error
