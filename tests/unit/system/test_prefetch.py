"""What warming refuses, and what it says of the page cache."""

from __future__ import annotations

from rlbox.system.prefetch import CachedFile, PageCacheReport, format_report


def report(*files: tuple[int, int | None], read: int = 0) -> PageCacheReport:
    rows = [
        CachedFile(path=f"/m/{number}", size=size, resident=resident) for number, (size, resident) in enumerate(files)
    ]
    return PageCacheReport(files=tuple(rows), resident_before=None, bytes_read=read, seconds=2.0)


def test_what_the_kernel_does_not_tell_is_not_claimed() -> None:
    warmed = report((10, 10), (10, None), read=20)
    assert (warmed.resident_bytes, warmed.is_warm) == (None, None)
    said = "2 files, 20 B: read, but the kernel does not tell how much of it is in memory, 20 B read in 2 s (10 B/s)"
    assert format_report(warmed) == said


def test_a_share_is_never_rounded_up_to_all() -> None:
    warmed = report((100_000, 99_999), read=100_000)
    assert warmed.is_warm
    assert "99.9 % in memory" in format_report(warmed)
    assert report((1000, 998)).is_warm is False
