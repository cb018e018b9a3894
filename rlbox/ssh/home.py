"""What of another machine is here: files come in any number of calls, and count when they are proven."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rlbox.amounts import size_text
from rlbox.errors import NodeError
from rlbox.files.act.copies import sum_file
from rlbox.files.act.folders import write_atomic
from rlbox.files.act.room import free_bytes
from rlbox.files.act.rows import read_table
from rlbox.ssh.files import FileWay, Tell, fetch_file, fetch_together
from rlbox.ssh.listing import RemoteFile, total_bytes

_NOTED = 1 << 26
"""Bytes after which what is proven is written down."""
_SMALL = 1 << 20
"""Bytes up to which files come together: a call for each costs more than they do."""
_TOGETHER = 500


class Home:
    """What of a machine is on this one: `folder` holds the files, the file `record` tells which were proven.

    Without a folder it is the one that the record names.
    """

    def __init__(self, record: Path, folder: Path | None = None) -> None:
        self._record = record
        row = read_table(record, links=True)
        self.folder = folder or Path(str(row.get("folder", "")))
        self._proven = {}
        if str(row.get("folder")) == str(self.folder):
            self._proven = {str(one["path"]): RemoteFile(**one) for one in row.get("files", ())}

    @property
    def known(self) -> bool:
        """Whether anything was fetched from there."""
        return bool(self._proven)

    def has(self, file: RemoteFile) -> bool:
        """Whether the file is here, as it is there."""
        path = self.folder / file.path
        return file.same(self._proven.get(file.path)) and path.is_file() and path.stat().st_size == file.size

    def lacks(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        """Return those that are not here, or changed there since."""
        return [file for file in files if not self.has(file)]

    def bring(self, way: FileWay, base: str, files: Sequence[RemoteFile], tell: Tell) -> None:
        """Bring files; each is noted when it is proven, so that a call that was cut goes on."""
        room = free_bytes(self.folder)
        if room < (need := total_bytes(files)):
            raise NodeError(
                f"{size_text(need)} come home, and {size_text(room)} are free",
                where=str(self.folder),
                next_step="make room, or name another folder with --to DIR",
            )
        unnoted = 0
        try:
            for file in self._brought(way, base, files, tell):
                self._proven[file.path] = file
                if (unnoted := unnoted + file.size) > _NOTED:
                    unnoted = self._write()
        finally:
            self._write()

    def _brought(self, way: FileWay, base: str, files: Sequence[RemoteFile], tell: Tell) -> Iterator[RemoteFile]:
        """Yield each file when it is here: those that are already, then small ones together, then one after another."""
        left = []
        for file in files:
            here = self.folder / file.path
            if here.is_file() and here.stat().st_size == file.size and sum_file(here) == file.sha256:
                tell(file.size)
                yield file
            else:
                left.append(file)
        small = [file for file in left if file.size <= _SMALL]
        came: set[str] = set()
        for begin in range(0, len(small), _TOGETHER):
            for file in fetch_together(way, base, small[begin : begin + _TOGETHER], self.folder, tell):
                came.add(file.path)
                yield file
        for file in left:
            if file.path not in came:
                fetch_file(way, base, file, self.folder, tell)
                yield file

    def _write(self) -> int:
        rows = [vars(file) for file in self._proven.values()]
        write_atomic(self._record, json.dumps({"schema": 1, "folder": str(self.folder), "files": rows}) + "\n")
        return 0
