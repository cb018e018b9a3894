"""The page of `docs/` that says what takes the place of every command of the first notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlbox.docs.seed import Seeds
from rlbox.image.templates import page_environment
from rlbox.spec.check import check_spec
from rlbox.spec.load import load_toml

TABLE, PAGE = "docs/seeds.toml", "docs/seeds.md"


def load_seeds(checkout: Path) -> Seeds:
    """Return the table of a checkout; `SpecError` when it is broken.

    It is no part of the package: an image would then name every host that the notes name.
    """
    path = checkout / TABLE
    return check_spec(Seeds, load_toml(path), str(path))


def seed_page(seeds: Seeds, templates: Sequence[Path]) -> str:
    """Return the page; `templates` are the folders that have `docs/*.j2`."""
    return (
        page_environment(templates, code=_code)
        .get_template("docs/seeds.md.j2")
        .render(seeds=seeds.seeds, rows=seeds.row, commands=sum(len(row.lines()) for row in seeds.row))
    )


def _code(text: str) -> str:
    """Return a text as code in a cell of a table, whatever backticks it holds."""
    mark = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{mark}{pad}{text}{pad}{mark}".replace("|", "\\|")
