"""What an image says about itself: its layers, and how the lock that it holds differs from another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.target.lock import Lock

# What the engine's history says of each `COPY --link --from=STAGE /out/LAYER/ /`.
_NAMED = re.compile(r"COPY /out/([^/ ]+)/ /$")


@dataclass(frozen=True, kw_only=True)
class ImageLayer:
    """One layer; `part` is what it holds, empty when that is not known; `size` in bytes, unpacked."""

    part: str
    size: int
    command: str


@dataclass(frozen=True, kw_only=True)
class ImageComponent:
    """One thing that an image holds; `version` is a commit for git, and empty for a file or a patch."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class LockChange:
    """One thing that two locks say differently; `before` or `after` is empty when one of them lacks it."""

    group: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.before:
            return f"{self.group}: {self.name} {self.after} was added"
        if not self.after:
            return f"{self.group}: {self.name} {self.before} was removed"
        return f"{self.group}: {self.name} {self.before} → {self.after}"


def list_image_layers(engine_history: Sequence[Mapping[str, Any]], *, patched: bool = False) -> tuple[ImageLayer, ...]:
    """Return the layers, the lowest first; `engine_history` is the engine's, the highest first, empty layers among it.

    `patched` says that source files were patched, which have a layer of their own.
    """
    rows = [(str(row["CreatedBy"]).removesuffix(" # buildkit"), row["Size"]) for row in reversed(engine_history)]
    rows = [(command, size) for command, size in rows if size or command.startswith("COPY /out/")]
    unnamed = iter(("runtime", "environment", *(["patches"] if patched else []), "fixes", "rlbox"))
    layers, part = [], "os"
    for command, size in rows:
        if part in ("lock", "other"):  # above the lock is what of rlbox decides no image
            part = "other"
        elif named := _NAMED.match(command):
            part = named[1]
        elif command.startswith("COPY /out/"):
            part = next(unnamed, "")
        elif command.startswith("COPY lock/"):
            part = "lock"
        layers.append(ImageLayer(part=part, size=size, command=command))
    return tuple(layers)


def group_lock_components(lock: Lock) -> dict[str, tuple[ImageComponent, ...]]:
    """Return what a lock names, by layer group in the order of the image; groups with nothing in them are left out."""
    python = {group.name: group.packages for group in (lock.runtime, lock.build, *lock.groups)}
    found: dict[str, Sequence[Any]]
    found = {"os": lock.debs, **python, "git": lock.git, "http": lock.http, "patches": lock.patches}
    return {group: tuple(map(_part, rows)) for group, rows in found.items() if rows}


def _part(row: Any) -> ImageComponent:
    return ImageComponent(name=row.name, version=getattr(row, "version", getattr(row, "commit", "")), sha256=row.sha256)


def list_lock_changes(old_lock: Lock, new_lock: Lock) -> tuple[LockChange, ...]:
    """Return what is in one lock and not, or otherwise, in the other: group by group, sorted by name."""
    changes = [
        LockChange(group="target", name=key, before=getattr(old_lock, key), after=getattr(new_lock, key))
        for key in ("python", "platform", "base")
        if getattr(old_lock, key) != getattr(new_lock, key)
    ]
    old, new = group_lock_components(old_lock), group_lock_components(new_lock)
    for group in dict.fromkeys([*new, *old]):
        olds, news = ({row.name: row for row in rows.get(group, ())} for rows in (old, new))
        for name in sorted({*olds, *news}):
            if olds.get(name) != news.get(name):
                versions = _versions(olds.get(name), news.get(name))
                changes.append(LockChange(group=group, name=name, before=versions[0], after=versions[1]))
    return tuple(changes)


def _versions(before: ImageComponent | None, after: ImageComponent | None) -> tuple[str, str]:
    """Return how two rows are told apart: by version, else by the first digits of the file's sha256."""
    same = before and after and before.version == after.version
    rows = [(row.sha256[:12] if same or not row.version else row.version) if row else "" for row in (before, after)]
    return rows[0], rows[1]
