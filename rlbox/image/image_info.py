"""What an image says about itself: layers by the lock that it holds, what they took, how it stands to a lock now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import duration_text, size_text
from rlbox.image.buildkit import BuildStep
from rlbox.image.layers import split_into_layers
from rlbox.target.lock import Lock

# What the engine's history says of each `COPY --link --from=STAGE /out/LAYER/ /`, and of the lock's copy above them.
_OWN_LAYER, _LOCK_LAYER = "COPY /out/", "COPY lock/"
_NAMED = re.compile(r"COPY /out/([^/ ]+)/ / ")


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


def list_image_layers(
    engine_history: Sequence[Mapping[str, Any]], lock: Lock | None, *, patched: bool = False
) -> tuple[ImageLayer, ...]:
    """Return the layers, the lowest first; `engine_history` is the engine's, the highest first, empty layers among it.

    `patched` says that source files were patched, which have a layer of their own.
    """
    rows = [row for row in reversed(engine_history) if row["Size"] or str(row["CreatedBy"]).startswith(_OWN_LAYER)]
    top = _top([str(row["CreatedBy"]) for row in rows[-2:]])
    below = rows[: len(rows) - len(top)]
    own = 0
    while own < len(below) and str(below[-1 - own]["CreatedBy"]).startswith(_OWN_LAYER):
        own += 1
    parts = _parts(lock, own, patched) if lock else ("",) * own
    names = ("os",) * (len(below) - own) + parts + top
    return tuple(_layer(name, row["Size"], str(row["CreatedBy"])) for name, row in zip(names, rows, strict=True))


def _layer(name: str, size: int, command: str) -> ImageLayer:
    """Return the facts of a layer; the command that made it knows its name better than its place does."""
    named = _NAMED.match(command)
    return ImageLayer(part=named[1] if named else name, size=size, command=command.removesuffix(" # buildkit"))


def _top(commands: Sequence[str]) -> tuple[str, ...]:
    """Return what the highest layers hold: the lock, and above it, in images of today, what of rlbox decides none."""
    places = [number for number, command in enumerate(commands) if command.startswith(_LOCK_LAYER)]
    return ("lock", "other")[: len(commands) - places[0]] if places else ()


def _parts(lock: Lock, count: int, patched: bool) -> tuple[str, ...]:
    """Return what each of the `count` layers of rlbox holds, unknown ones as empty names.

    From what size on a wheel had a layer of its own is a word of the spec, which the image does not hold: the number of
    layers tells it.
    """
    before = ("runtime", "environment")
    after = (*(tree.name for tree in lock.git), *(file.name for file in lock.http))
    after += ("patches",) * patched + ("fixes", "rlbox")
    wheels = sorted((p for group in lock.groups for p in group.packages), key=lambda p: (-p.size, p.name))
    for most in range(len(wheels) + 1):
        alone = {package.sha256 for package in wheels[:most]}
        python = [name for group in lock.groups for name, _ in split_into_layers(group.name, group.packages, alone)]
        if len(before) + len(python) + len(after) == count:
            return (*before, *python, *after)
    return ("",) * count


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


# Build stages that have another name than what `rlbox show` calls their layer; what all others lay, their copies tell.
_STAGES = {name: f"rlbox.{name}" for name in ("os", "runtime", "patches", "fixes", "other")} | {
    "environment": "rlbox.venv",
    "rlbox": "rlbox.files",
}
_COPY = re.compile(r"COPY (?:--link )?--from=(\S+) (/out/\S+/ /)$")


@dataclass(frozen=True, kw_only=True)
class LayerBuildTime:
    """One layer, the lowest first: `size` in bytes, unpacked; `seconds` is None when nothing was done for it."""

    part: str
    size: int
    seconds: float | None


def compute_layer_times(layers: Iterable[ImageLayer], steps: Iterable[BuildStep]) -> tuple[LayerBuildTime, ...]:
    """Return what each of `layers` took by the steps of one build.

    Steps that ran at once each count in full, and those of a stage for every layer that it lays.
    """
    steps = list(steps)
    spent = _seconds(steps)
    stages = {f"COPY {copy[2]}": copy[1] for step in steps if (copy := _COPY.search(step.name))}
    return tuple(
        LayerBuildTime(
            part=one.part or one.command,
            size=one.size,
            seconds=spent.get(stages.get(one.command) or _STAGES.get(one.part, "")),
        )
        for one in layers
    )


def _seconds(steps: Iterable[BuildStep]) -> Mapping[str, float]:
    """Return the seconds of each build stage: `[torch.large 2/2] RUN …`."""
    found: dict[str, float] = {}
    for step in steps:
        stage = step.name.partition(" ")[0].removeprefix("[")
        if step.name.startswith("[") and step.state == "done" and step.seconds is not None:
            found[stage] = found.get(stage, 0.0) + step.seconds
    return found


def format_layer_times(layer_times: Sequence[LayerBuildTime]) -> str:
    lines = [f"{size_text(row.size):>9}  {_spent(row.seconds):>10}  {row.part}" for row in layer_times]
    return "\n".join([*lines, f"{size_text(sum(row.size for row in layer_times)):>9}  {'':>10}  in all, unpacked"])


def _spent(seconds: float | None) -> str:
    return "cache" if seconds is None else duration_text(seconds)
