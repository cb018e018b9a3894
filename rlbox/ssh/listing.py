"""What files a machine has, asked of its own Python, and what of them is here already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from rlbox.errors import WorkFailed
from rlbox.foreign import parse_json

# Python 3.6 or newer, standard library alone. Of a file that grows, the bytes that it has now; not the space that a run
# sets aside for its last words.
PROGRAM = r"""
import hashlib, json, os, stat, sys
base, sums, roots = sys.argv[1], sys.argv[2] == "sums", sys.stdin.read().splitlines()
def files(root):
    if not os.path.isdir(root):
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(set(names) - {".reserve"}):
            yield os.path.join(folder, name)
home = os.path.realpath(base)
for root in roots:
    whole = os.path.realpath(os.path.join(base, root))
    if whole != home and not whole.startswith(home.rstrip("/") + "/"):
        row = {"path": root, "size": 0, "mtime": 0, "trouble": "a link leads out of the folder"}
        print(json.dumps(row), flush=True)
        continue
    for path in files(os.path.join(base, root)):
        try:
            facts = os.lstat(path)
            if not stat.S_ISREG(facts.st_mode):
                continue
            row = {"path": os.path.relpath(path, base), "size": facts.st_size, "mtime": int(facts.st_mtime)}
            if sums:
                whole, left = hashlib.sha256(), facts.st_size
                with open(path, "rb") as file:
                    while left:
                        block = file.read(min(left, 1 << 20))
                        if not block:
                            raise OSError("it has shrunk")
                        whole.update(block)
                        left -= len(block)
                row["sha256"] = whole.hexdigest()
        except FileNotFoundError:
            continue
        except OSError as error:
            row = {"path": os.path.relpath(path, base), "size": 0, "mtime": 0, "trouble": str(error)}
        print(json.dumps(row), flush=True)
"""

# Sends files behind each other, of each as many bytes as were asked for; what a file lacks by now is made up by zeros.
PACK = r"""
import json, os, sys
base, asked = sys.argv[1], [json.loads(line) for line in sys.stdin]
for name, size in asked:
    data = b""
    try:
        with open(os.path.join(base, name), "rb") as file:
            data = file.read(size)
    except OSError:
        pass
    sys.stdout.buffer.write(data.ljust(size, b"\0"))
"""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A regular file: `path` below the base folder, `size` in bytes, `mtime` in whole seconds since 1970.

    `sha256` is of the first `size` bytes, empty where it was not asked for.
    """

    path: str
    size: int
    mtime: int
    sha256: str = ""

    def same(self, other: RemoteFile | None) -> bool:
        """Whether another listing names the same file, by size and time."""
        return other is not None and (self.path, self.size, self.mtime) == (other.path, other.size, other.mtime)


def read_listing(text: str) -> tuple[tuple[RemoteFile, ...], tuple[str, ...]]:
    """Return the files that the program printed, and what it could not read.

    Raises
    ------
    WorkFailed
        It printed something else, or a path that leads out of the base folder.
    """
    found, troubles = [], []
    for line in text.splitlines():
        try:
            row = parse_json(line)
            path, trouble = str(row["path"]), row.get("trouble")
            one = RemoteFile(
                path=path, size=int(row["size"]), mtime=int(row["mtime"]), sha256=str(row.get("sha256", ""))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise WorkFailed(f"the list of files cannot be read: {line[:80]!r}") from error
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or not parts:
            raise WorkFailed(f"the list of files names {path!r}, which is not below its folder")
        if trouble:
            troubles.append(f"{path}: {trouble}")
        else:
            found.append(one)
    return tuple(found), tuple(troubles)


def total_bytes(files: Iterable[RemoteFile]) -> int:
    """Return the bytes of files."""
    return sum(file.size for file in files)
