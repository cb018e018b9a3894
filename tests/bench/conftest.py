"""What rows of the benchmarks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.place import Kept


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    """What several rows use, made small."""
    kept = Kept(small=True)
    with kept.on_close:
        yield kept
