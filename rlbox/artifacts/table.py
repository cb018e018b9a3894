"""What a fetch has to bring: files and bytes of each layer group, there and missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlbox.amounts import padded, size_text
from rlbox.target.artifact import Artifact, artifacts, artifacts_here
from rlbox.target.lock import Lock


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """The files of one layer group; a file that two groups share counts in the first."""

    group: str
    files: int
    bytes: int
    present_files: int
    present_bytes: int

    @property
    def missing_bytes(self) -> int:
        return self.bytes - self.present_bytes


def group_rows(
    lock: Lock, extra: Sequence[Artifact], has: Callable[[str], bool], *, here: bool = False
) -> tuple[GroupRow, ...]:
    """Return a row for each group of `lock` in the order of the image, after those of `extra` (a base image).

    Parameters
    ----------
    here
        Of the groups that a machine without an image takes.
    """
    groups = [] if here else [*(artifact.group for artifact in extra), *["os"] * bool(lock.debs), "runtime"]
    groups += ["build"] * bool(lock.build.packages) + [group.name for group in lock.groups]
    files: dict[str, list[Artifact]] = {group: [] for group in groups}
    seen: set[str] = set()
    for artifact in (*extra, *(artifacts_here(lock) if here else artifacts(lock))):
        if artifact.sha256 not in seen:
            files.setdefault(artifact.group, []).append(artifact)
        seen.add(artifact.sha256)
    return tuple(_row(group, found, has) for group, found in files.items())


TOTAL = "total"


def total_row(rows: Sequence[GroupRow]) -> GroupRow:
    return GroupRow(
        group=TOTAL,
        files=sum(row.files for row in rows),
        bytes=sum(row.bytes for row in rows),
        present_files=sum(row.present_files for row in rows),
        present_bytes=sum(row.present_bytes for row in rows),
    )


def _row(group: str, files: Sequence[Artifact], has: Callable[[str], bool]) -> GroupRow:
    present = [artifact for artifact in files if has(artifact.sha256)]
    return GroupRow(
        group=group,
        files=len(files),
        bytes=sum(artifact.size for artifact in files),
        present_files=len(present),
        present_bytes=sum(artifact.size for artifact in present),
    )


def table_text(rows: Sequence[GroupRow]) -> str:
    lines = [f"{'group':<16} {'files':>6} {'size':>10} {'present':>10} {'missing':>10}"]
    for row in (*rows, total_row(rows)):
        shown = row.group
        sizes = (row.bytes, row.present_bytes, row.missing_bytes)
        lines.append(f"{padded(shown, 16)} {row.files:>6} " + " ".join(f"{size_text(size):>10}" for size in sizes))
    return "\n".join(lines)
