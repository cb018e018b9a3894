"""Write the pages that are made from tables: docs/fixes/*.md of the fix catalogue, and docs/variables.md.

`python scripts/make_docs.py` (`make docs`); with `--check` it writes nothing and exits 1 when a page is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlbox.config.project import Project
from scripts.docs.fix_docs import fix_pages, load_catalogue
from scripts.docs.variables import variables_page

CHECKOUT = Path(__file__).resolve().parent.parent


def stale_pages() -> dict[str, str | None]:
    """Return the pages that differ from what they should be, with their right text; None for one that should not be."""
    project = Project(folder=CHECKOUT)
    catalogue = load_catalogue(project, CHECKOUT / "tests/faults")
    pages = {
        **fix_pages(catalogue, project.list_existing_template_dirs_except_packs()),
        "docs/variables.md": variables_page(),
    }
    there = {f"docs/fixes/{path.name}": path for path in (CHECKOUT / "docs/fixes").glob("*.md")}
    left = dict.fromkeys(sorted(set(there) - set(pages)))
    return {
        **{name: text for name, text in pages.items() if not _same(CHECKOUT / name, text)},
        **left,
    }


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main() -> int:
    """Write the pages, or with `--check` only name the stale ones; return the exit code."""
    stale = stale_pages()
    if "--check" in sys.argv[1:]:
        sys.stderr.write("".join(f"{name} is stale: make docs\n" for name in stale))
        return int(bool(stale))
    for name, text in stale.items():
        path = CHECKOUT / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
