"""Where the build context has what a lock names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlbox.target.lock import Lock


def part_files(lock: Lock) -> dict[str, str]:
    """Return where the build context has the git trees and files of a lock, by name.

    The checksum is part of the path: objects of the store have one time stamp, and BuildKit takes a file of the same
    path, size and time stamp for the one that it has (source: tonistiigi/fsutil diff_containerd.go, `sameFile`).
    """
    trees = {tree.name: f"git/{tree.name}-{tree.sha256[:12]}.tar" for tree in lock.git}
    return trees | {file.name: f"http/{file.name}-{file.sha256[:12]}" for file in lock.http}


def lock_folder(lock: Lock) -> str:
    """Return the folder of the build context that holds the lock as the image has it.

    It is copied as it stands, with a fixed time stamp, so that a changed lock runs no step. Its name is the lock's:
    BuildKit takes files of one path, size and time stamp for the same.
    """
    return f"lock/{lock.checksum()[:12]}"
