"""Whether a stack has taken real steps on GPUs: the runs that were kept, and what they say of a target's versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from rlbox.errors import page
from rlbox.fixes.conditions import list_git_package_names, list_stack_versions
from rlbox.foreign import parse_json

if TYPE_CHECKING:
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target

PROVEN = Path(__file__).with_name("proven.json")
"""The kept runs that passed, as `scripts/proof.py` writes them."""

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, kw_only=True)
class ProvenRun:
    """A kept run all of whose gates held; `stack` has the package names of what decided it, with their versions.

    `lock` is the content digest of the lock that it ran with, and `target` the shipped target whose lock that is; both
    are empty for runs of packages that no lock pinned.
    """

    job: str
    profile: str
    gpu: str
    gpus: int
    place: str
    date: str
    stack: Mapping[str, str]
    target: str = ""
    lock: str = ""

    def text(self) -> str:
        """Return it in one line: `sft (tiny), 1 x NVIDIA H100 80GB HBM3, in place, 2026-11-25`."""
        where = "in place" if self.place == "here" else "in a container"
        run, cards = f"{self.job} ({self.profile})", f"{self.gpus} x {self.gpu}"
        return f"{run}, {cards}, {where}, {self.date}"


def load_proven_runs() -> tuple[ProvenRun, ...]:
    """Return the kept runs that passed."""
    return tuple(ProvenRun(**row) for row in parse_json(PROVEN.read_text("utf-8"))["runs"])


def find_runs_with(versions: Mapping[str, str]) -> tuple[ProvenRun, ...]:
    """Return the kept runs whose stack a target has: every package of it in the same version, whatever its build."""
    return tuple(
        run
        for run in load_proven_runs()
        if all(_is_same(versions.get(name, ""), version) for name, version in run.stack.items())
    )


def find_runs_of(lock: Lock | None) -> tuple[ProvenRun, ...]:
    digest = lock.content_digest() if lock else ""
    return tuple(run for run in load_proven_runs() if digest and run.lock == digest)


def is_unproven(target: Target, lock: Lock | None) -> bool:
    """Return whether a target is for GPUs, and no kept run had its lock."""
    return target.hardware.gpus > 0 and not find_runs_of(lock)


def proof_mark(target: Target, lock: Lock | None) -> str:
    """Return in a few words where a target's lock ran; nothing for a target without GPUs."""
    if not target.hardware.gpus:
        return ""
    if found := find_runs_of(lock):
        run = max(found, key=lambda run: (run.date, run.gpus))
        cards = f"{run.gpus} x {run.gpu}"
        return f"ran on {cards}, {run.date}"
    gpu = target.hardware.gpu or "GPUs"
    return f"untested on {gpu}"


def proof_lines(target: Target, lock: Lock | None) -> list[str]:
    """Return what is known of a target's lock on GPUs; nothing for one without."""
    if not target.hardware.gpus:
        return []
    if found := find_runs_of(lock):
        return [f"proven: {run.text()}" for run in found]
    others = [
        f"the same versions by another lock: {run.text()}" for run in find_runs_with(_pinned_versions(target, lock))
    ]
    return [f"unproven: no kept run on GPUs had this lock: {page('proof')}", *others]


def _pinned_versions(target: Target, lock: Lock | None) -> dict[str, str]:
    """Return the versions of a target's packages; of its git parts, the refs."""
    refs = {name: part.ref for part in target.git for name in list_git_package_names(part)}
    return {**list_stack_versions(target, lock), **refs}


def _is_same(pinned: str, ran: str) -> bool:
    """Return whether two versions or refs are one; of two commits the shorter may be the beginning of the other."""
    if _COMMIT.fullmatch(pinned) and _COMMIT.fullmatch(ran):
        return pinned.startswith(ran) or ran.startswith(pinned)
    return _release(pinned) == _release(ran)


def _release(version: str) -> str:
    """Return a version without what says how it was built: `2.11.0+cu130` and `2.11.0` are one."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version
