"""Write docs/internal/faultlab.md: which cause was recorded, with which versions, in how many logs."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faultrecipe import LAB, Recipe, recipes
from record import labels_of

PAGE = LAB.parents[1] / "docs/internal/faultlab.md"
HEAD = """# What the fault lab has recorded

Made by `python tests/faultlab/covered.py`. Versions are those that printed the logs; a log counts for the half of its
recipe. `cards`: recipes that wait for a machine with them.

| cause | open | held | cards | versions |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    rows: dict[str, list[Recipe]] = defaultdict(list)
    for recipe in recipes():
        for cause in (recipe.cause, *recipe.benign):
            rows[cause].append(recipe)
    return HEAD + "".join(_row(cause, rows[cause]) for cause in sorted(rows))


def _row(cause: str, own: list[Recipe]) -> str:
    versions: dict[str, set[str]] = defaultdict(set)
    logs = {"open": 0, "held": 0}
    for recipe in own:
        for label in labels_of(recipe).values():
            logs[recipe.half] += 1
            for package, version in label["versions"].items():
                versions[package].add(version)
    waiting = sum(bool(recipe.needs) and not labels_of(recipe) for recipe in own)
    told = "; ".join(f"{package} {', '.join(sorted(kept))}" for package, kept in sorted(versions.items()))
    return f"| `{cause}` | {logs['open']} | {logs['held']} | {waiting or ''} | {told} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
