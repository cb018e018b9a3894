"""What warming reads, what it refuses, and what it says of the page cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlbox.errors import NodeError
from rlbox.evaluation.prefetch import (
    CHUNK_BYTES,
    CachedFile,
    CacheReport,
    FileRange,
    add_resident_bytes,
    format_cache_report,
    require_free_memory,
    split_into_ranges,
)

GIB = 1 << 30


def test_files_are_read_in_pieces() -> None:
    files = (
        CachedFile(path="/m/a", size=CHUNK_BYTES + 5),
        CachedFile(path="/m/b", size=0),
        CachedFile(path="/m/c", size=7),
    )
    pieces = split_into_ranges(files)
    assert pieces == (
        FileRange(path="/m/a", offset=0, length=CHUNK_BYTES),
        FileRange(path="/m/a", offset=CHUNK_BYTES, length=5),
        FileRange(path="/m/c", offset=0, length=7),
    )
    known = [replace(piece, resident=4) for piece in pieces[:2]]
    assert [file.resident for file in add_resident_bytes(files, [*known, pieces[2]])] == [8, 0, None]


def test_files_larger_than_the_memory_are_refused() -> None:
    file = CachedFile(path="/m/a", size=30 * GIB)
    require_free_memory([file], 30 * GIB)
    with pytest.raises(NodeError) as error:
        require_free_memory([file], 16 * GIB)
    assert str(error.value) == (
        "32.2 GB do not stay in memory: the page cache can have 17.2 GB here\n"
        "  where: /m/a\n"
        "  next:  warm fewer files, end what uses the memory, or raise the container's limit (run.memory_gib)"
    )


def test_what_the_kernel_does_not_tell_is_not_claimed() -> None:
    known, unknown = CachedFile(path="/m/a", size=10, resident=10), CachedFile(path="/m/b", size=10)
    warmed = CacheReport(files=(known, unknown), read=20, seconds=2.0)
    assert (warmed.resident, warmed.share, warmed.warm) == (None, None, None)
    said = "2 files, 20 B: read, but the kernel does not tell how much of it is in memory, 20 B read in 2 s (10 B/s)"
    assert format_cache_report(warmed) == said


def test_a_share_is_never_rounded_up_to_all() -> None:
    warmed = CacheReport(files=(CachedFile(path="/m/a", size=100_000, resident=99_999),), read=100_000, seconds=1.0)
    assert warmed.warm
    assert "99.9 % in memory" in format_cache_report(warmed)
    torn = CacheReport(files=(CachedFile(path="/m/a", size=1000, resident=998),))
    assert torn.warm is False
