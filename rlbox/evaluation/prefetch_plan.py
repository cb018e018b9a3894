"""What warming does: which pieces of which files are read, and whether there is memory to keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlbox.amounts import counted, duration_text, size_text
from rlbox.errors import NodeError
from rlbox.i18n import _

PIECE = 64 << 20
"""Bytes that one thread reads in a row."""
WHOLE = 0.999
"""Share of the bytes that must be resident (performance goal 28)."""


@dataclass(frozen=True, kw_only=True)
class WarmFile:
    """A file to warm; `resident` bytes of it are in the page cache, None where the kernel does not tell."""

    path: str
    size: int
    resident: int | None = None


@dataclass(frozen=True, kw_only=True)
class FileRange:
    """A range of a file, and how much of it is in the page cache; None where the kernel does not tell."""

    path: str
    offset: int
    length: int
    resident: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it need not be read."""
        return self.resident == self.length


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """What is in the page cache, before and after; `read` counts the bytes that were read for it.

    `seconds` is what reading took, or looking where nothing was read.
    """

    files: tuple[WarmFile, ...]
    pieces: tuple[FileRange, ...] = ()
    before: int | None = None
    read: int = 0
    seconds: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def resident(self) -> int | None:
        """Bytes in the page cache; None where the kernel does not tell of one of the files."""
        return resident_of(self.files)

    @property
    def share(self) -> float | None:
        """Share of the bytes that are in the page cache; 1 where there are none."""
        return None if self.resident is None else self.resident / self.size if self.size else 1.0

    @property
    def warm(self) -> bool | None:
        """Whether practically all is there; None where the kernel does not tell."""
        return None if self.share is None else self.share >= WHOLE

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        totals = {"size": self.size, "resident_before": self.before, "resident": self.resident, "read": self.read}
        return {
            **totals,
            "warm": self.warm,
            "seconds": round(self.seconds, 6),
            "files": [vars(file) for file in self.files],
        }


def resident_of(rows: Sequence[WarmFile | FileRange]) -> int | None:
    """Return the bytes of files, or pieces, that are in the page cache; None where one of them is not known."""
    known = [row.resident for row in rows if row.resident is not None]
    return sum(known) if len(known) == len(rows) else None


def plan_pieces(files: Sequence[WarmFile]) -> tuple[FileRange, ...]:
    """Return the pieces that the files are looked at and read in, in the order of the files."""
    return tuple(
        FileRange(path=file.path, offset=offset, length=min(PIECE, file.size - offset))
        for file in files
        for offset in range(0, file.size, PIECE)
    )


def with_residence(files: Sequence[WarmFile], pieces: Sequence[FileRange]) -> tuple[WarmFile, ...]:
    """Return the files with what the pieces say of them."""
    by_path: dict[str, list[FileRange]] = {}
    for piece in pieces:
        by_path.setdefault(piece.path, []).append(piece)
    return tuple(replace(file, resident=resident_of(by_path.get(file.path, ()))) for file in files)


def check_room(files: Sequence[WarmFile], room: int) -> None:
    """Refuse to read what the memory cannot keep.

    Parameters
    ----------
    room
        Bytes that the page cache can have, with what it holds already.

    Raises
    ------
    NodeError
        The files are larger: reading their end would drive out their beginning.
    """
    size = sum(file.size for file in files)
    if size <= room:
        return
    raise NodeError(
        _("{size} do not stay in memory: the page cache can have {room} here").format(
            size=size_text(size), room=size_text(room)
        ),
        where=files[0].path if len(files) == 1 else f"{len(files)} files from {files[0].path} on",
        next_step=_("warm fewer files, end what uses the memory, or raise the container's limit (run.memory_gib)"),
    )


def warmed_text(warmed: Warmed) -> str:
    """Return one line: how much is there, how fast it came."""
    files = f"{counted(len(warmed.files), 'file', 'files')}, {size_text(warmed.size)}"
    if warmed.share is None:
        there = "read, but the kernel does not tell how much of it is in memory"
    else:
        there = f"{int(warmed.share * 1000) / 10:g} % in memory"
    if not warmed.read:
        return f"{files}: {there}, nothing was read"
    speed = size_text(warmed.read / max(warmed.seconds, 1e-6))
    return f"{files}: {there}, {size_text(warmed.read)} read in {duration_text(warmed.seconds)} ({speed}/s)"
