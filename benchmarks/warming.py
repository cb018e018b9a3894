"""Goal 28: model files into the page cache, against `cat`; only these files are driven out of it, no others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.pairs import Sample
from benchmarks.place import Place

FILES, BYTES = 4, 512 << 20
_BLOCK = 16 << 20
READER = """
import os, sys, threading
PIECE = 4 << 20
spots = iter([(handle, at) for handle in (os.open(path, os.O_RDONLY) for path in sys.argv[1:])
              for at in range(0, os.fstat(handle).st_size, PIECE)])
def read(room):
    for handle, at in spots: os.preadv(handle, [room], at)
threads = [threading.Thread(target=read, args=(bytearray(PIECE),)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def cold(place: Place) -> Sample:
    """`rlbox warm` of files that are not in memory, with its start-up, against `cat` of the same.

    Beside it four threads that do nothing but read them show what the disk gives.
    """
    paths = place.kept.get(_shards)

    def drive_out() -> None:
        for path in paths:
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)

    ours = place.rlbox("warm", "--json", *paths, before=drive_out, says='"seconds": ')
    cat = place.case(_cat(paths), before=drive_out)
    bare = place.case((sys.executable, "-I", "-S", "-c", READER, *paths), name="bare reader", before=drive_out)
    return place.compare(ours, cat, bare)


def _cat(paths: tuple[str, ...]) -> tuple[str, ...]:
    return ("sh", "-c", 'cat "$@" >/dev/null', "cat", *paths)


def _shards(place: Place) -> tuple[str, ...]:
    """Write files of random bytes to the disk, and return their paths."""
    paths = [Path(place.folder, f"model-{number}.safetensors") for number in range(FILES)]
    for path in paths:
        with open(path, "wb") as file:
            for _ in range(place.pick(BYTES // _BLOCK, 1)):
                file.write(os.urandom(_BLOCK))
            os.fsync(file.fileno())
    return tuple(map(str, paths))
