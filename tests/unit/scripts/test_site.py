"""The site's pages: every link of every page leads to a page of the site, or to a file of the repository."""

from __future__ import annotations

import posixpath
import re
import runpy

import pytest
import yaml
from fakes import CHECKOUT

from rlbox.cli.root import COMMANDS
from rlbox.job.job import Job
from scripts.docs.reference import reference_pages

SITE = runpy.run_path(str(CHECKOUT / "scripts/site_pages.py"))
SOURCES: dict[str, str] = SITE["SOURCES"]
REPOSITORY = "https://github.com/rlbox-dev/rlbox/blob/main"
PAGES = {
    **{path.relative_to(CHECKOUT / "docs").as_posix(): path for path in (CHECKOUT / "docs").rglob("*.md")},
    **{page: CHECKOUT / source for page, source in SOURCES.items()},
}
PAGES.pop("zh/README.md")  # as zh/docs.md
REFERENCE = reference_pages()
FENCED = re.compile(r"```.*?```", re.DOTALL)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    text = SITE["with_links"](FENCED.sub("", PAGES[page].read_text("utf-8")), page, REPOSITORY)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if link.startswith(REPOSITORY):
            there = link.removeprefix(f"{REPOSITORY}/")
            assert (CHECKOUT / there).exists(), link
            assert not (there.startswith("docs/") and there.endswith(".md")), link
        elif not re.match(r"[a-z]+:", link):
            found = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            assert found in PAGES or (CHECKOUT / "docs" / found).is_file(), link


def test_the_menu_has_every_page_but_internal_ones_and_the_fixes_own() -> None:
    menu = re.findall(r"[\w/-]+\.md", (CHECKOUT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2])
    pages = [page for page in PAGES if not page.startswith(("fixes/", "internal/")) or page == "fixes/README.md"]
    assert sorted(menu) == sorted([*pages, *SITE["REFERENCE"]])


def test_reference_pages_have_every_command_and_key() -> None:
    assert {f"reference/{name}" for name in REFERENCE} == set(SITE["REFERENCE"])
    assert [name for name in COMMANDS if f"### rlbox {name}\n" not in REFERENCE["commands.md"]] == []
    assert [key for key in Job.model_fields if f"| `{key}` |" not in REFERENCE["files.md"]] == []
    assert "| 4 |" in REFERENCE["exit-codes.md"]


def test_reference_describes_every_key_of_the_files() -> None:
    rows = [line for line in REFERENCE["files.md"].splitlines() if line.startswith("| `")]
    assert [row for row in rows if not row.removesuffix("|").rpartition(" | ")[2].strip()] == []


def test_the_site_asks_no_other_host() -> None:
    site = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text("utf-8"))
    assert site["theme"]["font"] is False
    assert "repo_url" not in site
