"""Many text files as one archive, `NAME.tar.xz`: what tests and scripts read, and what recorders write.

python tests/packed.py ARCHIVE list
python tests/packed.py ARCHIVE extract DIR    write its files below DIR
python tests/packed.py ARCHIVE add DIR        take every file below DIR, in place of those of the same path
"""

from __future__ import annotations

import argparse
import functools
import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def read_packed(archive: Path) -> Mapping[str, bytes]:
    """Return the files of an archive by their path in it; none where there is no archive."""
    if not archive.exists():
        return {}
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]


def write_packed(archive: Path, files: Mapping[str, bytes]) -> None:
    """Write an archive of these files; the same files give the same bytes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    archive.write_bytes(lzma.compress(data.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    read_packed.cache_clear()


def main() -> None:
    """List, extract or add."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("action", choices=("list", "extract", "add"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    args = parser.parse_args()
    files = read_packed(args.archive)
    if args.action == "add":
        new = {path.relative_to(args.folder).as_posix(): path for path in args.folder.rglob("*") if path.is_file()}
        write_packed(args.archive, {**files, **{name: path.read_bytes() for name, path in new.items()}})
        return
    for name, content in sorted(files.items()):
        if args.action == "list":
            print(f"{len(content):9} {name}")
        else:
            path = args.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    main()
