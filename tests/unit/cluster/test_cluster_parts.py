"""Parts of an image on a node: what came of one is its beginning, whatever could not be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlbox.cluster.programs.node_blobs import Blobs

DIGEST = f"sha256:{'0a' * 32}"


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    made = Blobs(str(tmp_path), "own/parts", {"word": "w", "manifests": {}, "sizes": {DIGEST: 9}}, lambda row: None)
    yield made
    made.close()


def test_bytes_behind_some_that_could_not_be_written_are_not_kept(blobs: Blobs, tmp_path: Path) -> None:
    blobs.write(DIGEST, 0, [b"abc"])
    rest = iter([b"ghi"])
    blobs.write(DIGEST, 6, rest)
    assert (blobs.length(DIGEST), next(rest, None)) == (3, None)  # all of them are read
    blobs.write(DIGEST, 3, [b"def", b"ghi"])
    assert (tmp_path / "own/parts" / DIGEST[7:]).read_bytes() == b"abcdefghi"


def test_a_part_goes_on_from_where_it_is_asked_for(blobs: Blobs, tmp_path: Path) -> None:
    blobs.write(DIGEST, 0, [b"abcxyz"])
    blobs.write(DIGEST, 3, [b"def"])
    assert (tmp_path / "own/parts" / DIGEST[7:]).read_bytes() == b"abcdef"
