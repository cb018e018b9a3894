"""What has to change on a machine to bring it to a target's lock: facts in, steps out."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlbox.findings import Finding
from rlbox.provision.desired import DesiredState, FileToInstall, Skipped, merge_lines
from rlbox.provision.layout import Layout
from rlbox.values import VENV

UNPACKED = 4.0
"""Bytes of an environment for each byte of its wheels, with the cache that they are unpacked in.

Measured with `local`: 0.79 GB of wheels are 2.6 GB of files.
"""
_ROOM = 1 << 30

Kind = Literal["absent", "file", "link", "folder", "other"]
StepKind = Literal["packages", "environment", "part", "patches", "file", "link", "remove"]


@dataclass(frozen=True, kw_only=True)
class PathState:
    """What is at a path: for a file its sha256, mode (octal) and, where asked for, its text; for a link its target.

    `program` says that it is a compiled program, or a link to one: environments of others may be made with it.
    """

    kind: Kind = "absent"
    sha256: str = ""
    mode: str = ""
    to: str = ""
    uid: int = 0
    gid: int = 0
    text: str | None = None
    program: bool = False

    def describe(self) -> str:
        """Return it in words."""
        match self.kind:
            case "file":
                return f"file {self.sha256[:12]}, mode {self.mode}"
            case "link":
                return f"link to {self.to}"
            case "absent":
                return "nothing"
            case _:
                return f"a {self.kind}" if self.kind == "folder" else "no plain file"


MISSING = PathState()


@dataclass(frozen=True, kw_only=True)
class InstalledFile:
    """What was laid at a path, what stood there before, and where a copy of that is (empty: nothing, or a link)."""

    now: PathState
    before: PathState = MISSING
    backup: str = ""
    merged: str = ""


@dataclass(frozen=True, kw_only=True)
class InstalledPart:
    """A git tree, a file or the environment that was put at a path; `before` is where what stood there was moved."""

    sha256: str = ""
    before: str = ""


@dataclass(frozen=True, kw_only=True)
class InstallRecord:
    """What rlbox laid on a machine.

    `state` is `laying` from before the first change to after the last one. `kept` are copies of what the user had
    written over something laid, `folders` those that were made, `packages` the apt packages that were installed.
    `python` and `accepted` are what the user said of the machine's interpreter and of its versions. `forced` is the
    contradiction of the stack that `--force` overrode.
    """

    target: str
    lock: str
    state: Literal["laying", "laid", "removing"]
    prefix: str = ""
    data: str = ""
    venv: str = ""
    laid: Mapping[str, InstalledFile] = field(default_factory=dict)
    parts: Mapping[str, InstalledPart] = field(default_factory=dict)
    environment: InstalledPart | None = None
    patches: str = ""
    packages: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    python: str = ""
    accepted: Mapping[str, str] = field(default_factory=dict)
    forced: str = ""
    schema: int = 1


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """A machine as it is.

    `paths` has every path that is wanted or recorded. `stamp` is what the environment was synced to, `installed` its
    packages with versions, `torn` says that a sync of it never ended, `foreign` that it is somebody else's.
    `why_no_packages` is empty where apt packages can be installed.
    """

    paths: Mapping[str, PathState]
    record: InstallRecord | None = None
    stamp: str = ""
    installed: Mapping[str, str] = field(default_factory=dict)
    torn: bool = False
    foreign: bool = False
    debs: frozenset[str] = frozenset()
    why_no_packages: str = ""


@dataclass(frozen=True, kw_only=True)
class PathChange:
    """One change: what is at `path` now, what will be; `keep` says that a copy of what is there is kept."""

    kind: StepKind
    path: str
    old: str
    new: str
    why: str = ""
    keep: bool = False
    laid: FileToInstall | None = None

    def describe(self) -> str:
        """Return it as one line."""
        kept = "; what is there is kept" if self.keep else ""
        why = f" ({self.why})" if self.why else ""
        return f"{self.kind:<11} {self.path}: {self.old} -> {self.new}{kept}{why}"


@dataclass(frozen=True, kw_only=True)
class ApplyPlan:
    """All changes in their order, and what this machine does not get."""

    desired: DesiredState
    steps: tuple[PathChange, ...]
    skipped: tuple[Skipped, ...]
    fresh: bool = False
    """Whether the environment is made anew rather than synced."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(step.kind for step in self.steps)


def choose_venv(layout: Layout, wheels: int, free_here: int, free_data: int, same_disk: bool) -> Layout:
    """Return the layout with the environment on the data disk, where its own place has too little room.

    Parameters
    ----------
    wheels, free_here, free_data
        Bytes: of the wheels, free where the environment belongs, free on the data disk.
    """
    need = int(wheels * UNPACKED) + _ROOM
    if same_disk or free_here >= need or free_data < need:
        return layout
    return replace(layout, venv=f"{layout.data}/rlbox{VENV}")


def environment_fingerprint(desired: DesiredState) -> str:
    """Return what says which packages an environment was synced to, and what stands behind them."""
    text = f"python {desired.python}\n{desired.requirements}"
    if base := desired.base:
        rows = (*base.folders, *(f"{name}=={version}" for name, version in base.packages.items()))
        text += "".join(f"base {row}\n" for row in (base.python, *rows))
    return text


def plan_apply(desired: DesiredState, facts: MachineState) -> ApplyPlan:
    """Return the changes that bring a machine of `facts` to `wanted`; none when it is there."""
    packages, unmet = _packages(desired, facts)
    patching = patches_checksum(desired) != (facts.record.patches if facts.record else "")
    environment = tuple(_environment(desired, facts, patching))
    parts = tuple(_parts(desired, facts, patching))
    touched = patching or bool(environment or parts)
    patches = [_patch_step(desired)] if desired.patches and touched else []
    fresh = bool(environment) and (facts.torn or patching or facts.foreign)
    files, blocked = _files(desired, facts, f"{desired.layout.at(VENV)}/" if fresh else "")
    removed = tuple(_removed(desired, facts))
    return ApplyPlan(
        desired=desired,
        steps=(*packages, *environment, *parts, *patches, *removed, *files),
        skipped=(*desired.skipped, *unmet, *blocked),
        fresh=fresh,
    )


def installed_state(laid: FileToInstall) -> PathState:
    if laid.to:
        return PathState(kind="link", to=laid.to)
    return PathState(
        kind="file", sha256=hashlib.sha256(laid.text.encode("utf-8", "surrogateescape")).hexdigest(), mode=laid.mode
    )


def patches_checksum(desired: DesiredState) -> str:
    """Return the sha256 of the manifest of source patches; empty without one."""
    return hashlib.sha256(desired.patches.encode()).hexdigest() if desired.patches else ""


def is_same_content(one: PathState, other: PathState) -> bool:
    """Whether two paths hold the same: kind, bytes and mode, or kind and target."""
    return (one.kind, one.sha256, one.mode, one.to) == (other.kind, other.sha256, other.mode, other.to)


def merge_with_existing(laid: FileToInstall, path_state: PathState) -> FileToInstall:
    """Return the file as it will be: one that a platform fills too, with what is in it now, and no easier to read."""
    if not laid.merged or path_state.text is None:
        return laid
    return replace(laid, text=merge_lines(path_state.text, laid.merged), mode=path_state.mode)


def _packages(desired: DesiredState, facts: MachineState) -> tuple[tuple[PathChange, ...], tuple[Skipped, ...]]:
    missing = tuple(name for name in desired.debs if name not in facts.debs)
    if not missing:
        return (), ()
    text = " ".join(missing)
    if facts.why_no_packages:
        return (), (Skipped(what=f"apt packages {text}", origin="apt", reason=facts.why_no_packages),)
    return (PathChange(kind="packages", path="apt", old="not installed", new=text),), ()


def _environment(desired: DesiredState, facts: MachineState, patching: bool) -> Iterator[PathChange]:
    path = desired.layout.at(VENV)
    drift = list_package_differences(desired, facts.installed)
    new = f"Python {desired.python}, {len(desired.packages)} packages of the lock"
    new += f", on {len(desired.base.packages)} of {desired.base.python}" if desired.base else ""
    if facts.foreign:
        yield PathChange(kind="environment", path=path, old="not one of rlbox", new=new, keep=True)
    elif facts.torn:
        yield PathChange(kind="environment", path=path, old="half made", new=new, why="made anew")
    elif not facts.stamp:
        yield PathChange(kind="environment", path=path, old="nothing", new=new)
    elif facts.stamp != environment_fingerprint(desired):
        yield PathChange(kind="environment", path=path, old="of another lock", new=new, why=shorten_differences(drift))
    elif drift:
        yield PathChange(
            kind="environment", path=path, old="not as the lock says", new=new, why=shorten_differences(drift)
        )
    elif patching:
        yield PathChange(kind="environment", path=path, old="with other patches", new=new, why="made anew")


def list_package_differences(desired: DesiredState, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Return every package that an environment has otherwise than the lock, in words."""
    names = sorted({*desired.packages, *installed})
    rows = ((name, installed.get(name, "absent"), desired.packages.get(name, "absent")) for name in names)
    return tuple(f"{name} {there} -> {due}" for name, there, due in rows if there != due)


def shorten_differences(drift: tuple[str, ...], shown: int = 4) -> str:
    """Return the first few rows of a drift."""
    more = f", and {len(drift) - shown} more" if len(drift) > shown else ""
    return ", ".join(drift[:shown]) + more


def _parts(desired: DesiredState, facts: MachineState, patching: bool) -> Iterator[PathChange]:
    known = facts.record.parts if facts.record else {}
    for part in desired.parts:
        path_state, own = facts.paths.get(part.path, MISSING), known.get(part.path)
        if own and own.sha256 == part.sha256 and path_state.kind != "absent" and not patching:
            continue
        old = "another version" if own and own.sha256 and path_state.kind != "absent" else path_state.describe()
        keep = path_state.kind != "absent" and not (own and own.sha256)
        yield PathChange(
            kind="part", path=part.path, old=old, new=f"{part.kind} {part.name} {part.sha256[:12]}", keep=keep
        )


def _patch_step(desired: DesiredState) -> PathChange:
    path = f"{desired.layout.own}/share/patches.json"
    return PathChange(kind="patches", path=path, old="not applied", new="source patches, by content")


def _files(desired: DesiredState, facts: MachineState, gone: str) -> tuple[tuple[PathChange, ...], tuple[Skipped, ...]]:
    """Return the files and links to lay, and those that cannot be; what lies below `gone` goes before."""
    known = facts.record.laid if facts.record else {}
    steps, blocked = [], []
    for row in desired.laid:
        path_state = MISSING if gone and row.path.startswith(gone) else facts.paths.get(row.path, MISSING)
        laid = merge_with_existing(row, path_state)
        due = installed_state(laid)
        if is_same_content(path_state, due):
            continue
        if path_state.kind in ("folder", "other"):
            blocked.append(Skipped(what=row.path, origin=row.origin, reason=f"{path_state.describe()} is in its place"))
            continue
        own = known.get(row.path)
        if path_state.program and not own:
            reason = "a program of this machine is there, which other environments may link to"
            blocked.append(Skipped(what=row.path, origin=row.origin, reason=reason))
            continue
        keep = path_state.kind != "absent" and not (own and is_same_content(own.now, path_state))
        kind: StepKind = "link" if laid.to else "file"
        told = {"old": path_state.describe(), "new": due.describe(), "why": row.origin}
        steps.append(PathChange(kind=kind, path=row.path, **told, keep=keep, laid=laid))
    return tuple(steps), tuple(blocked)


def _removed(desired: DesiredState, facts: MachineState) -> Iterator[PathChange]:
    """Yield what an earlier lock laid, and this one does not."""
    if not facts.record:
        return
    due = {row.path for row in desired.laid}
    for path, own in facts.record.laid.items():
        if path not in due:
            yield PathChange(
                kind="remove", path=path, old=own.now.describe(), new=own.before.describe(), why="no longer part of it"
            )
    for path in sorted(set(facts.record.parts) - {part.path for part in desired.parts}):
        before = "what stood there" if facts.record.parts[path].before else "nothing"
        yield PathChange(kind="remove", path=path, old="a part", new=before, why="no longer part of it")


_DIFF_BYTES = 1 << 16


def plan_lines(plan: ApplyPlan, *, differences: bool) -> Iterator[str]:
    """Yield a line for each change; with `differences` also what changes in a text file that is there."""
    for step in plan.steps:
        yield step.describe()
        if differences:
            yield from (f"    {line}" for line in step_diff(step))


def step_diff(step: PathChange) -> list[str]:
    """Return the lines that change in a file of the user's, as a unified diff; none where nothing is there."""
    if step.laid is None or step.laid.to:
        return []
    try:
        data = Path(step.path).read_bytes()
    except OSError:
        return []
    if len(data) > _DIFF_BYTES or b"\0" in data:
        return []
    old, new = data.decode("utf-8", "replace").splitlines(), step.laid.text.splitlines()
    return list(difflib.unified_diff(old, new, "now", "then", lineterm="", n=1))


def skipped_lines(skipped: Sequence[Skipped]) -> Iterator[str]:
    """Yield what the machine does not get, one line for each reason."""
    for reason in dict.fromkeys(row.reason for row in skipped):
        names = sorted({row.what for row in skipped if row.reason == reason})
        yield f"left out    {', '.join(names)}: {reason}"


def finding_lines(findings: Iterable[Finding], skipped: Sequence[Skipped]) -> Iterator[str]:
    """Yield the checks that fail; one of a fix that this machine cannot have whole is marked."""
    partial = {row.origin for row in skipped}
    for row in findings:
        note = " (only in part on this machine)" if row.id in partial else ""
        yield f"fails       {row.id}{note}: {row.seen or row.title}\n            next: {row.remedy}"


def steps_json(steps: Iterable[PathChange]) -> list[dict[str, Any]]:
    """Return the changes as JSON types: kind, path, old, new, why, and whether what is there is kept."""
    keys = ("kind", "path", "old", "new", "why", "keep")
    return [{key: getattr(step, key) for key in keys} for step in steps]


def skipped_json(skipped: Iterable[Skipped]) -> list[dict[str, str]]:
    """Return what the machine does not get as JSON types."""
    return [{"what": row.what, "fix": row.origin, "reason": row.reason} for row in skipped]


def compare_result(desired: DesiredState, plan: ApplyPlan, *, differences: bool) -> tuple[dict[str, Any], str]:
    """Return what a machine lacks of what is wanted, as JSON types and as text."""
    layout, state = desired.layout, "differs" if plan.steps else "unchanged"
    lines = [f"{desired.target}  {state}: {len(plan.steps)} changes at {layout.prefix or '/'}"]
    lines += [*plan_lines(plan, differences=differences), *skipped_lines(plan.skipped)]
    data = {"target": desired.target, "prefix": layout.prefix, "state": state}
    return {**data, "steps": steps_json(plan.steps), "left": skipped_json(plan.skipped)}, "\n".join(lines)


def apply_result(
    desired: DesiredState,
    skipped: Sequence[Skipped],
    steps: Sequence[PathChange],
    kept: Sequence[str],
    checks: tuple[int, Sequence[Finding]],
) -> tuple[dict[str, Any], str]:
    """Return what was done, as JSON types and as text; `checks` are how many there are, and those that fail."""
    layout, state = desired.layout, "applied" if steps else "unchanged"
    count, findings = checks
    changes = f", {len(steps)} changes" if steps else ""
    lines = [f"{desired.target}  {state}{changes}: {count - len(findings)} of {count} checks hold"]
    lines += [f"kept        {path}" for path in kept]
    lines += [*skipped_lines(skipped), *finding_lines(findings, skipped)]
    data = {
        "target": desired.target,
        "prefix": layout.prefix,
        "python": layout.python,
        "state": state,
        "steps": steps_json(steps),
        "kept": list(kept),
        "left": skipped_json(skipped),
        "checks": {"count": count, "failed": [row.as_json() for row in findings]},
    }
    return data, "\n".join(lines)
