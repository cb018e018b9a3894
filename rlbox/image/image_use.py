"""The images that an engine keeps for rlbox: whose each is, how it stands, and whether anything needs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlbox.amounts import columns, size_text

REPLACED, GONE = "replaced by a later build", "its project is gone"
_SUM, _ID = "sha256:", len("sha256:") + 12


@dataclass(frozen=True, kw_only=True)
class KeptImage:
    """An image with a label of rlbox, by one of its names.

    Parameters
    ----------
    name
        `rlbox/TARGET:PROJECT`, or the image's id where it has no name left.
    project
        Folder of its project where this user has had it; else the project's name, empty where there is none.
    state
        How it stands: `as its specs say`, why it is outdated, or whose it is.
    spare
        Nothing needs it: it was replaced, or its project or target is gone.
    containers
        Names of the containers that were made from it, running or not.
    size
        Bytes, of which other images may share some.
    """

    name: str
    identity: str
    target: str
    project: str
    state: str
    spare: bool
    containers: tuple[str, ...]
    size: int

    @property
    def shown(self) -> str:
        """The name as people are shown it: of an id its beginning."""
        return self.name[:_ID] if self.name.startswith(_SUM) else self.name


def image_lines(rows: Sequence[KeptImage]) -> list[str]:
    """Return the rows as a table."""
    head = ("image", "size", "state")
    return columns([head, *((row.shown, size_text(row.size), _told(row)) for row in rows)])


def image_fate(row: KeptImage) -> str:
    """Return why an image stays; empty: it goes."""
    if row.containers:
        return f"container {row.containers[0]} is made from it"
    return "" if row.spare else row.state


def fate_lines(rows: Iterable[tuple[KeptImage, str]], *, done: bool) -> list[str]:
    """Return what becomes of each image; `done`: it is gone already."""
    lines = []
    for row, stays in rows:
        if stays:
            lines.append(f"{row.shown} is kept: {stays}")
        elif done:
            lines.append(f"removed {row.shown}, {size_text(row.size)}")
        else:
            line = f"would remove {row.shown}, {size_text(row.size)}"
            lines.append(f"{line}: {row.state}" if row.spare else line)
    return lines


def freed_bytes(rows: Iterable[KeptImage]) -> int:
    """Return the bytes of some images, each once whatever its names; what others share is counted."""
    return sum({row.identity: row.size for row in rows}.values())


def _told(row: KeptImage) -> str:
    return f"{row.state}; container {row.containers[0]}" if row.containers else row.state
