"""What has to change on a machine to bring it to a target's lock: facts in, steps out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from rlbox.amounts import pad_translated
from rlbox.findings import Finding
from rlbox.i18n import _, join, translate
from rlbox.provision.desired import DesiredState, FileOrLinkToInstall, SkippedItem, merge_env_file_joining_paths
from rlbox.values import VENV

BackupPath = str
"""Where what stood at a path is kept; empty: nothing stood there."""
PathKind = Literal["absent", "file", "link", "folder", "other"]
StepKind = Literal["packages", "environment", "part", "patches", "file", "link", "remove"]


@dataclass(frozen=True, kw_only=True)
class PathState:
    """What is at a path: for a file its sha256, mode (octal) and, where asked for, its text; for a link its target.

    `program` says that it is a compiled program, or a link to one: environments of others may be made with it.
    """

    kind: PathKind = "absent"
    sha256: str = ""
    mode: str = ""
    to: str = ""
    uid: int = 0
    gid: int = 0
    text: str | None = None
    program: bool = False

    def describe(self) -> str:
        match self.kind:
            case "file":
                return _("file {digest}, mode {mode}").format(digest=self.sha256[:12], mode=self.mode)
            case "link":
                return _("link to {path}").format(path=self.to)
            case "absent":
                return _("nothing")
            case "folder":
                return _("a folder")
            case "other":
                return _("no plain file")


MISSING = PathState()


@dataclass(frozen=True, kw_only=True)
class InstalledFile:
    """What was laid at a path, what stood there before, and where a copy of that is (empty: nothing, or a link)."""

    now: PathState
    before: PathState = MISSING
    backup: BackupPath = ""
    merged: str = ""


@dataclass(frozen=True, kw_only=True)
class InstalledTreeFileOrVenv:
    """A git tree, a file or the environment that was put at a path; `before` is where what stood there was moved."""

    sha256: str = ""
    before: BackupPath = ""


@dataclass(frozen=True, kw_only=True)
class InstallRecord:
    """What rlbox laid on a machine.

    `state` is `laying` from before the first change to after the last one. `kept` are copies of what the user had
    written over something laid, `folders` those that were made, `packages` the apt packages that were installed.
    `python` is the interpreter that the user named.
    """

    target: str
    lock: str
    state: Literal["laying", "laid", "removing"]
    prefix: str = ""
    data: str = ""
    laid: Mapping[str, InstalledFile] = field(default_factory=dict)
    parts: Mapping[str, InstalledTreeFileOrVenv] = field(default_factory=dict)
    environment: InstalledTreeFileOrVenv | None = None
    patches: str = ""
    packages: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    python: str = ""
    schema: int = 1


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """A machine as it is.

    `paths` has every path that is wanted or recorded. `venv_fingerprint` is what the environment was synced to,
    `venv_packages` its packages with versions, `is_incomplete_venv` says that a sync of it never ended,
    `is_foreign_venv` that it is somebody else's. `apt_unavailable_reason` is empty where apt packages can be installed.
    """

    paths: Mapping[str, PathState]
    record: InstallRecord | None = None
    venv_fingerprint: str = ""
    venv_packages: Mapping[str, str] = field(default_factory=dict)
    is_incomplete_venv: bool = False
    is_foreign_venv: bool = False
    installed_apt_packages: frozenset[str] = frozenset()
    apt_unavailable_reason: str = ""


_KINDS: dict[StepKind, str] = {
    "packages": _("packages"),
    "environment": _("environment"),
    "part": _("part"),
    "patches": _("patches"),
    "file": _("file"),
    "link": _("link"),
    "remove": _("remove"),
}


class PathChange(NamedTuple):
    kind: StepKind
    path: str
    old_description: str
    new_description: str
    reason: str = ""
    keeps_backup: bool = False
    file: FileOrLinkToInstall | None = None

    def describe(self) -> str:
        kept = _("; existing files are kept") if self.keeps_backup else ""
        why = f" ({translate(self.reason)})" if self.reason else ""
        change = f"{translate(self.old_description)} -> {translate(self.new_description)}"
        return f"{pad_translated(_KINDS[self.kind], 11)} {self.path}: {change}{translate(kept)}{why}"


@dataclass(frozen=True, kw_only=True)
class ApplyPlan:
    desired: DesiredState
    steps: tuple[PathChange, ...]
    skipped: tuple[SkippedItem, ...]
    recreates_venv: bool = False
    """Whether the environment is created again rather than synced."""

    @property
    def step_kinds(self) -> frozenset[str]:
        return frozenset(step.kind for step in self.steps)


def format_venv_fingerprint(desired: DesiredState) -> str:
    return f"python {desired.python}\n{desired.requirements}"


def plan_apply_skipping_conflicts(desired: DesiredState, machine: MachineState) -> ApplyPlan:
    packages, unmet = _packages(desired, machine)
    patching = (compute_patch_manifest_sha256(desired) or "") != (machine.record.patches if machine.record else "")
    environment = tuple(_environment(desired, machine, patching))
    parts = tuple(_parts(desired, machine, patching))
    touched = patching or bool(environment or parts)
    patches = []
    if desired.patch_manifest and touched:
        path = f"{desired.layout.rlbox_dir}/share/patches.json"
        patches.append(PathChange("patches", path, _("not applied"), _("source patches, by content")))
    fresh = bool(environment) and (machine.is_incomplete_venv or patching or machine.is_foreign_venv)
    files, blocked = _files(desired, machine, f"{desired.layout.add_prefix(VENV)}/" if fresh else "")
    removed = tuple(_removed(desired, machine))
    return ApplyPlan(
        desired=desired,
        steps=(*packages, *environment, *parts, *patches, *removed, *files),
        skipped=(*desired.skipped, *unmet, *blocked),
        recreates_venv=fresh,
    )


def make_expected_path_state(file: FileOrLinkToInstall) -> PathState:
    if file.link_target:
        return PathState(kind="link", to=file.link_target)
    return PathState(
        kind="file", sha256=hashlib.sha256(file.text.encode("utf-8", "surrogateescape")).hexdigest(), mode=file.mode
    )


def compute_patch_manifest_sha256(desired: DesiredState) -> str | None:
    return hashlib.sha256(desired.patch_manifest.encode()).hexdigest() if desired.patch_manifest else None


def is_same_kind_content_and_mode(left: PathState, right: PathState) -> bool:
    return (left.kind, left.sha256, left.mode, left.to) == (right.kind, right.sha256, right.mode, right.to)


def _packages(desired: DesiredState, facts: MachineState) -> tuple[tuple[PathChange, ...], tuple[SkippedItem, ...]]:
    text = " ".join(name for name in desired.apt_packages if name not in facts.installed_apt_packages)
    if not text:
        return (), ()
    if facts.apt_unavailable_reason:
        return (), (SkippedItem(_("apt packages {names}").format(names=text), "apt", facts.apt_unavailable_reason),)
    return (PathChange("packages", "apt", _("not installed"), text),), ()


def _environment(desired: DesiredState, facts: MachineState, patching: bool) -> Iterator[PathChange]:
    drift = _describe_package_differences(desired, facts.venv_packages)
    if facts.is_foreign_venv:
        old, reason = _("not one of rlbox"), ""
    elif facts.is_incomplete_venv:
        old, reason = _("half made"), _("created again")
    elif not facts.venv_fingerprint:
        old, reason = _("nothing"), ""
    elif facts.venv_fingerprint != format_venv_fingerprint(desired):
        old, reason = _("of another lock"), drift
    elif drift:
        old, reason = _("not as the lock says"), drift
    elif patching:
        old, reason = _("with other patches"), _("created again")
    else:
        return
    new = _("Python {version}, {count} packages of the lock")
    new = new.format(version=desired.python, count=len(desired.packages))
    yield PathChange("environment", desired.layout.add_prefix(VENV), old, new, reason, facts.is_foreign_venv)


def _describe_package_differences(desired: DesiredState, installed: Mapping[str, str], limit: int = 4) -> str:
    names = sorted({*desired.packages, *installed})
    rows = ((name, installed.get(name, _("absent")), desired.packages.get(name, _("absent"))) for name in names)
    differences = [join(" ", (name, there, "->", due)) for name, there, due in rows if there != due]
    first = join(", ", differences[:limit])
    if len(differences) <= limit:
        return first
    return _("{first}, and {count} more").format(first=first, count=len(differences) - limit)


def _parts(desired: DesiredState, facts: MachineState, patching: bool) -> Iterator[PathChange]:
    known = facts.record.parts if facts.record else {}
    for part in desired.parts:
        path_state, own = facts.paths.get(part.install_path, MISSING), known.get(part.install_path)
        if own and own.sha256 == part.sha256 and path_state.kind != "absent" and not patching:
            continue
        old = _("another version") if own and own.sha256 and path_state.kind != "absent" else path_state.describe()
        keep = path_state.kind != "absent" and not (own and own.sha256)
        new = f"{part.kind} {part.name} {part.sha256[:12]}"
        yield PathChange("part", part.install_path, old, new, keeps_backup=keep)


def _files(
    desired: DesiredState, facts: MachineState, gone: str
) -> tuple[tuple[PathChange, ...], tuple[SkippedItem, ...]]:
    known = facts.record.laid if facts.record else {}
    steps, blocked = [], []
    for row in desired.files:
        path_state = MISSING if gone and row.path.startswith(gone) else facts.paths.get(row.path, MISSING)
        laid = row
        if row.rlbox_lines and path_state.text is not None:  # a platform fills it too
            text = merge_env_file_joining_paths(path_state.text, row.rlbox_lines)
            laid = replace(row, text=text, mode=path_state.mode)
        due = make_expected_path_state(laid)
        if is_same_kind_content_and_mode(path_state, due):
            continue
        own, reason = known.get(row.path), ""
        if path_state.kind in ("folder", "other"):
            reason = _("{what} is in its place").format(what=path_state.describe())
        elif path_state.program and not own:
            reason = _("a program of this machine is there, which other environments may link to")
        if reason:
            blocked.append(SkippedItem(row.path, row.fix_id_or_rlbox, reason))
            continue
        keep = path_state.kind != "absent" and not (own and is_same_kind_content_and_mode(own.now, path_state))
        kind: StepKind = "link" if laid.link_target else "file"
        old, new = path_state.describe(), due.describe()
        steps.append(PathChange(kind, row.path, old, new, row.fix_id_or_rlbox, keep, laid))
    return tuple(steps), tuple(blocked)


def _removed(desired: DesiredState, facts: MachineState) -> Iterator[PathChange]:
    if not facts.record:
        return
    due, gone = {row.path for row in desired.files}, _("no longer part of it")
    for path, own in facts.record.laid.items():
        if path not in due:
            yield PathChange("remove", path, own.now.describe(), own.before.describe(), gone)
    for path in sorted(set(facts.record.parts) - {part.install_path for part in desired.parts}):
        before = _("what stood there") if facts.record.parts[path].before else _("nothing")
        yield PathChange("remove", path, _("a part"), before, gone)


def _format_skipped_lines(skipped: Sequence[SkippedItem]) -> Iterator[str]:
    for reason in dict.fromkeys(row.reason for row in skipped):
        names = sorted({row.item for row in skipped if row.reason == reason})
        items = join(", ", names)
        yield f"{pad_translated(_('left out'), 11)} {translate(items)}: {translate(reason)}"


def _format_finding_lines(findings: Iterable[Finding], skipped: Sequence[SkippedItem]) -> Iterator[str]:
    partial = {row.source_id for row in skipped}
    for row in findings:
        note = translate(_(" (only in part on this machine)")) if row.id in partial else ""
        step = translate(_("next: {command}").format(command=_(row.remedy)))
        seen = translate(_(row.seen or row.title))
        yield f"{pad_translated(_('fails'), 11)} {row.id}{note}: {seen}\n{'':<12}{step}"


def _steps_to_json(steps: Iterable[PathChange]) -> list[dict[str, Any]]:
    return [
        {
            "kind": step.kind,
            "path": step.path,
            "old": step.old_description,
            "new": step.new_description,
            "why": step.reason,
            "keep": step.keeps_backup,
        }
        for step in steps
    ]


def _skipped_to_json(skipped: Iterable[SkippedItem]) -> list[dict[str, str]]:
    return [{"what": row.item, "fix": row.source_id, "reason": row.reason} for row in skipped]


class FixCheckCountAndFailures(NamedTuple):
    check_count: int
    failures: Sequence[Finding]


class JsonAndText(NamedTuple):
    json_data: dict[str, Any]
    text: str


def format_apply_plan_output(desired: DesiredState, plan: ApplyPlan) -> JsonAndText:
    layout, state = desired.layout, _("differs") if plan.steps else _("unchanged")
    text = _("{target}  {state}: {count} changes at {folder}")
    text = text.format(target=desired.target, state=state, count=len(plan.steps), folder=layout.prefix or "/")
    lines = [translate(text)]
    lines += [*(step.describe() for step in plan.steps), *_format_skipped_lines(plan.skipped)]
    data: dict[str, Any] = {"target": desired.target, "prefix": layout.prefix, "state": state}
    return JsonAndText(
        {**data, "steps": _steps_to_json(plan.steps), "left": _skipped_to_json(plan.skipped)}, "\n".join(lines)
    )


def format_apply_result_output(
    desired: DesiredState,
    skipped: Sequence[SkippedItem],
    steps: Sequence[PathChange],
    kept: Sequence[str],
    checks: FixCheckCountAndFailures,
) -> JsonAndText:
    layout, state = desired.layout, "applied" if steps else "unchanged"
    count, findings = checks
    text = _("{target}  unchanged: {held} of {checks} checks hold")
    if steps:
        text = _("{target}  applied, {count} changes: {held} of {checks} checks hold")
    held = count - len(findings)
    lines = [translate(text.format(target=desired.target, count=len(steps), held=held, checks=count))]
    lines += [f"{pad_translated(_('kept'), 11)} {path}" for path in kept]
    lines += [*_format_skipped_lines(skipped), *_format_finding_lines(findings, skipped)]
    data = {
        "target": desired.target,
        "prefix": layout.prefix,
        "python": layout.venv_python_path,
        "state": state,
        "steps": _steps_to_json(steps),
        "kept": list(kept),
        "left": _skipped_to_json(skipped),
        "checks": {"count": count, "failed": [row.as_json() for row in findings]},
    }
    return JsonAndText(data, "\n".join(lines))
