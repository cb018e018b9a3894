"""The zstd of Python's library from 3.14 on, of its backport before; and zip files that use it."""

import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

_ZIP_ZSTD = 93


def read_zip_members(path: Path, name_prefixes: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of a zip file's members with these prefixes; Python before 3.14 reads no zstd in it.

    Raises zipfile.BadZipFile, zstd.ZstdError or OSError.
    """
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            if not member.filename.startswith(name_prefixes):
                continue
            if member.compress_type != _ZIP_ZSTD:
                yield member.filename, archive.read(member)
                continue
            stream.seek(member.header_offset + 26)  # two lengths end the 30 bytes of the head
            stream.seek(sum(struct.unpack("<HH", stream.read(4))), 1)  # over the name and the extra field
            yield member.filename, zstd.decompress(stream.read(member.compress_size))
