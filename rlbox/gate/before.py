"""What lay where a stage is to write, before it began: so that what it left is told from what was there.

No time stamp decides: they can be set, and clocks of machines differ. What was there is known by inode, size and
digest; whether an inode was made since, by the file system's own clock, asked at the start and at the end.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rlbox.gate.fitting import files_at, fitting
from rlbox.job.gate_rule import WILD
from rlbox.system.origin import Inode, WriteWatcher, read_file_system_clock, read_inode
from rlbox.system.safe_files import open_regular_file

_BLOCK = 1 << 20
_WHOLE_BYTES = 64 * _BLOCK
_PIECES = 64
"""Of a larger file so many blocks count, spread evenly: whoever writes weights anew changes all of them."""

OnBlock = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    size: int
    digest: str


class Before:
    """The files that fitted some paths at one moment, and what became of them since.

    Parameters
    ----------
    paths
        As file rules name them, wild cards included.
    on_block
        Called while files are read; what it raises ends the look.
    """

    def __init__(self, paths: Iterable[str], on_block: OnBlock) -> None:
        self._on_block = on_block
        self._writes = WriteWatcher()
        self._seen: dict[Inode, _Seen] = {}
        self._began: dict[int, tuple[Path, int]] = {}
        for path in paths:
            self._start_clock(Path(path))
            for found in [Path(path), *(fitting(path) if WILD.search(path) else [])]:
                for file in files_at(found):
                    self._see(file)

    def problem(self, path: Path) -> str:
        """Return why the file at `path` was not written since, or an empty text; raises `OSError`."""
        inode, facts = read_inode(path), path.stat()
        if seen := self._seen.get(inode):
            same = facts.st_size == seen.size and inode not in self._writes.written()
            same = same and self._digest(path, facts.st_size) == seen.digest
            return "is as it was before the stage, which has not written it" if same else ""
        if inode[0] not in self._began:
            return "lies on another disk, where nothing was looked at before the stage"
        born, (folder, began) = inode[2], self._began[inode[0]]
        ends = read_file_system_clock(folder)[1] if began else 0
        if (born and ends < began) or not began:  # a clock that was set back meanwhile, or none
            return "has another name, by which it may be older than the stage" if facts.st_nlink > 1 else ""
        return "" if began <= born <= ends else "was made before the stage, which has not written it"

    def close(self) -> None:
        """Watch no more."""
        self._writes.close()

    def _start_clock(self, path: Path) -> None:
        folder = next((parent for parent in path.parents if parent.is_dir()), Path("/"))
        device, now = read_file_system_clock(folder)
        self._began.setdefault(device, (folder, now))

    def _see(self, path: Path) -> None:
        try:
            inode, size = read_inode(path), path.stat().st_size
            if inode not in self._seen:
                self._writes.watch(path, inode)
                self._seen[inode] = _Seen(size=size, digest=self._digest(path, size))
        except OSError:
            return  # it goes, or cannot be read: then it is no file that fulfils a rule either

    def _digest(self, path: Path, size: int) -> str:
        digest = hashlib.sha256()
        step = max(_BLOCK, (size - _BLOCK) // (_PIECES - 1)) if size > _WHOLE_BYTES else _BLOCK
        with open_regular_file(path, links=True) as file:
            for start in range(0, size, step):
                digest.update(os.pread(file.fileno(), _BLOCK, start))
                self._on_block()
        return digest.hexdigest()
