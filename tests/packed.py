"""Many text files of a folder as one archive, `NAME.tar.zst`: what tests and scripts read, and what recorders write."""

from __future__ import annotations

import functools
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from backports import zstd


@functools.cache
def read_packed(archive: Path) -> Mapping[str, bytes]:
    """Return the files of an archive by their path in it; none where there is no archive."""
    if not archive.exists():
        return {}
    with tarfile.open(fileobj=io.BytesIO(zstd.decompress(archive.read_bytes()))) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]


def write_packed(archive: Path, files: Mapping[str, bytes]) -> None:
    """Write an archive of these files; the same files give the same bytes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    options = {
        zstd.CompressionParameter.compression_level: 19,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
        zstd.CompressionParameter.window_log: 25,
    }
    archive.write_bytes(zstd.compress(data.getvalue(), options=options))
    read_packed.cache_clear()
