"""The pages that are made from tables are of the tables as they are."""

from __future__ import annotations

from scripts.make_docs import stale_pages


def test_made_pages_are_current() -> None:
    assert list(stale_pages()) == [], "make docs"
