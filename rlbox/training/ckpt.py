"""Checkpoints of a training: which are whole, from which a run resumes, and what of them nobody needs any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.training.ckpt_files import Entry, Kind, is_exported, problems_of

TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
"""Files that name the checkpoint to resume from: of verl and Megatron, and of DeepSpeed."""
_BUSY_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    `parts` maps `model`, `optimizer`, `hf`, `extra` to bytes. `exported`: weights are there in Hugging Face's form, so
    it can be evaluated. `latest`: the tracker names it, so a run resumes from it. `busy`: it may just be being written.
    """

    path: str
    kind: Kind
    step: int | None
    parts: Mapping[str, int]
    problems: tuple[str, ...] = ()
    exported: bool = False
    latest: bool = False
    busy: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.parts.values())

    @property
    def whole(self) -> bool:
        """Whether nothing of it is missing or cut short."""
        return not self.problems

    @property
    def has_optimizer(self) -> bool:
        """Whether a run can resume from it; Megatron and DeepSpeed keep the optimizer among the model's files, too."""
        return "optimizer" in self.parts or (self.kind == "megatron" and "model" in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        facts = {"path": self.path, "kind": self.kind, "step": self.step, "whole": self.whole, "size": self.size}
        flags = {"hf_export": self.exported, "optimizer": self.has_optimizer, "latest": self.latest}
        return {**facts, **flags, "being_written": self.busy, "parts": self.parts, "problems": list(self.problems)}


@dataclass(frozen=True, kw_only=True)
class Spare:
    """What can be removed: a path, its bytes, and why nothing needs it."""

    path: str
    size: int
    why: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSeries:
    """The checkpoints of one training, oldest first; `tracker` is what names the one to resume from, None: nothing."""

    path: str
    checkpoints: tuple[Checkpoint, ...]
    tracker: str | None = None
    problems: tuple[str, ...] = ()
    spare: tuple[Spare, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all is well."""
        return not self.problems and all(row.whole for row in self.checkpoints)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        spare = [{"path": row.path, "size": row.size, "why": row.why} for row in self.spare]
        rows = [row.as_json() for row in self.checkpoints]
        facts = {"path": self.path, "tracker": self.tracker, "whole": self.whole, "problems": list(self.problems)}
        return {**facts, "checkpoints": rows, "removable": spare}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint as it lies there: path, kind and step by its name, and its files."""

    path: str
    kind: Kind
    step: int | None
    entries: tuple[Entry, ...]


def plan_series(path: str, found: Sequence[Found], tracker: str | None) -> CheckpointSeries:
    """Return the checkpoints of one folder, judged by their files and by the tracker beside them."""
    ordered = sorted(found, key=lambda row: (-1 if row.step is None else row.step, row.path))
    rows = tuple(_judge(row, tracker) for row in ordered)
    problems = []
    if tracker is not None and not any(row.latest for row in rows):
        problems.append(f"the tracker names {tracker!r}, which is not there: nothing can be resumed")
    if tracker is None and any(row.kind == "megatron" for row in rows):
        problems.append(f"{TRACKERS[0]} is missing: Megatron loads nothing without it")
    spare = _spare(rows, {row.path: row.entries for row in found})
    return CheckpointSeries(path=path, checkpoints=rows, tracker=tracker, problems=tuple(problems), spare=spare)


def _judge(found: Found, tracker: str | None) -> Checkpoint:
    problems = list(problems_of(found.kind, found.entries))
    if found.kind in ("verl", "megatron") and tracker and tracker.isdigit() and (found.step or 0) > int(tracker):
        problems.append(f"it was never finished: the tracker names step {tracker}")
    parts: dict[str, int] = {}
    for entry in found.entries:
        part = "hf" if found.kind == "hf" and entry.part == "model" else entry.part
        parts[part] = parts.get(part, 0) + entry.size
    return Checkpoint(
        path=found.path,
        kind=found.kind,
        step=found.step,
        parts=parts,
        problems=tuple(dict.fromkeys(problems)),
        exported=is_exported(found.kind, found.entries),
        latest=tracker is not None and tracker in (str(found.step), found.path.rpartition("/")[2]),
        busy=bool(problems) and any(entry.age_s < _BUSY_S for entry in found.entries),
    )


def _spare(rows: Sequence[Checkpoint], entries: Mapping[str, Sequence[Entry]]) -> tuple[Spare, ...]:
    """Return torn checkpoints, and the optimizer of those that were exported and that no run resumes from.

    Never touched: the one that the tracker names, the newest whole one, and what may just be being written. Of one
    without an export nothing is spare, since it cannot be evaluated without all of its files.
    """
    able = [row for row in rows if row.whole and row.has_optimizer]
    kept = next((row for row in able if row.latest), able[-1] if able else None)
    found: list[Spare] = []
    for row in rows:
        if kept is None or row is kept or row.latest or row.busy:
            continue
        if not row.whole:
            found.append(Spare(path=row.path, size=row.size, why=f"it is torn, and step {kept.step} is whole"))
        elif row.exported:
            found += _optimizer(row.path, entries[row.path])
    return tuple(found)


def _optimizer(path: str, entries: Sequence[Entry]) -> list[Spare]:
    """Return an optimizer's files: the folder where it has its own, else one pattern a folder."""
    sizes: dict[str, int] = {}
    for entry in entries:
        if entry.part == "optimizer":
            folders, name = entry.path.split("/")[:-1], entry.path.rpartition("/")[2]
            own = "optimizer" in folders
            at = folders[: folders.index("optimizer") + 1] if own else [*folders, f"{name.partition('_rank_')[0]}*"]
            sizes["/".join(at)] = sizes.get("/".join(at), 0) + entry.size
    why = "the optimizer of a step that no run resumes from"
    return [Spare(path=f"{path}/{at}", size=size, why=why) for at, size in sizes.items()]
