"""What mkdocs needs beside docs/: the READMEs as first pages, and links that lead where they do in the repository.

A link of a page may leave docs/, as to a table below tests/: on the site it leads to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCES = {"index.md": "README.md", "zh/index.md": "README.zh-CN.md", "zh/docs.md": "docs/zh/README.md"}
"""Pages of the site whose file is elsewhere, by their name on it."""
REFERENCE = {f"reference/{name}.md": f"build/reference/{name}.md" for name in ("commands", "files", "exit-codes")}
"""Pages that `make site` writes from the code first, by their name on the site."""

_PAGES = {source: page for page, source in SOURCES.items()}
_LINK = re.compile(r"(\]\(|src=\"|href=\")(?!#)([^)\s\"]+)")
_ELSEWHERE = re.compile(r"[a-z]+:")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    for page, source in {**SOURCES, **REFERENCE}.items():
        files.append(File.generated(config, page, content=(CHECKOUT / source).read_text("utf-8")))
    files.remove(files.src_uris["zh/README.md"])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with its links as the site has them."""
    del files
    return with_links(markdown, page.file.src_uri, f"{config.extra['repository']}/blob/main")


def with_links(text: str, page: str, repository: str) -> str:
    """Return the text of `page`, a name on the site: links below docs/ lead to pages, all others to `repository`."""
    source = SOURCES.get(page, f"docs/{page}")

    def led(hit: re.Match[str]) -> str:
        path, mark, anchor = hit[2].partition("#")
        if _ELSEWHERE.match(path):
            return hit[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = _PAGES.get(found, found.removeprefix("docs/") if found.startswith("docs/") else "")
        if not there or not (there.endswith(".md") or (CHECKOUT / found).is_file()):
            return f"{hit[1]}{repository}/{found}{mark}{anchor}"
        return f"{hit[1]}{posixpath.relpath(there, posixpath.dirname(page) or '.')}{mark}{anchor}"

    return _LINK.sub(led, text)
