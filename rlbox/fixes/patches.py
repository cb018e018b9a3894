"""Which source patches a target gets, where in the image they start, and the manifest that the build step applies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlbox.fixes.conditions import Versions, check_package_requirement, get_source_and_repository_name
from rlbox.fixes.fix import Fix, FixPatch, map_files_to_added_text
from rlbox.fixes.render import build_template_values, render_fix_template
from rlbox.i18n import _
from rlbox.target.target import GitSource, PatchFacts, Target


@dataclass(frozen=True, kw_only=True)
class ResolvedPatch:
    """A patch of a target.

    `name` is `FIX/PATCH`, or the file of a target's own patch, whose `fix` is empty. `into` is a folder of the image;
    `made_from` maps paths to checksums. `skip` says why the patch is left out, and is empty when it is not. The diff is
    `diff`, or the file `diff_from` of the image, which a git part has.
    """

    name: str
    fix: str
    package: str
    into: str
    strip: int
    made_for: str
    made_from: Mapping[str, str] = field(hash=False)
    reason: str
    upstream: str
    upstream_has: str
    absent: str
    marker: str
    diff: str
    skip: str
    diff_from: str = ""


def resolve_patches_with_skipped(
    applicable_fixes: Iterable[Fix], target: Target, versions: Versions, target_patch_texts: Mapping[str, str]
) -> tuple[ResolvedPatch, ...]:
    """Return the patches of a target: those of its fixes in their order, then its own.

    `applicable_fixes`: The fixes that apply to the target.
    `target_patch_texts`: The target's own patches, file name to text.
    Raises SpecError: A folder's template is broken.
    """
    values = build_template_values(target, versions)
    rows = []
    for fix in applicable_fixes:
        for patch in fix.bake.patch:
            package, skip = find_package_to_patch(patch, target, versions)
            into = render_fix_template(patch.into, values, f"templates/fixes/{fix.id}.toml") or _folder(
                package, target, versions, values["site"]
            )
            rows.append(_row(patch, f"{fix.id}/{patch.name}", fix.id, package, into, patch.diff, skip))
    folders = {part.name: part.into for part in target.git}
    for own in target.patches:
        package, skip = find_package_to_patch(own, target, versions)
        row = _row(own, own.file, "", package, own.into, target_patch_texts.get(own.file, ""), skip)
        rows.append(replace(row, diff_from=f"{folders[own.part]}/{own.file}") if own.part else row)
    return tuple(rows)


class PackageOrSkip(NamedTuple):
    """The package or git part that a patch changes, and why the patch is skipped (empty: it is not)."""

    package_name: str
    skip_reason: str


def find_package_to_patch(patch: PatchFacts, target: Target, versions: Versions) -> PackageOrSkip:
    """Return the package or git part that a patch changes, and why it is skipped (empty: it is not).

    A git part has no version: there, content alone decides. Beside a package of its name, as a tree that is kept for
    its examples, it is left as it is: the package is what programs import.
    """
    against = []
    for text in patch.package:
        asked = Requirement(text)
        if _tree(asked.name, target, versions):
            return PackageOrSkip(canonicalize_name(asked.name), "")
        holds, fact = check_package_requirement(text, versions)
        if holds:
            return PackageOrSkip(canonicalize_name(asked.name), "")
        against.append(fact)
    return PackageOrSkip("", "; ".join(against))


def _find_git_source(name: str, target: Target) -> GitSource | None:
    """Return the target's git part of a name: its own, or the last piece of its address."""
    wanted = canonicalize_name(name)
    return next((part for part in target.git if wanted in get_source_and_repository_name(part)), None)


def has_patches_to_apply(patches: Iterable[ResolvedPatch]) -> bool:
    return any(not row.skip for row in patches)


def render_patch_manifest_json(
    target_name: str, patches: Iterable[ResolvedPatch], layer_dirs: Iterable[str] = ()
) -> str:
    """Return what templates/scripts/apply_patches.py reads, as JSON.

    `layer_dirs`: Folders of the layers that a build step finds, the lowest first.
    """
    rows = [{key: value for key, value in asdict(patch).items() if key != "diff_from" or value} for patch in patches]
    data = {"schema": 1, "target": target_name, "layers": [*layer_dirs], "patches": rows}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def format_patch_summaries(patches: Iterable[ResolvedPatch]) -> tuple[str, ...]:
    """Return what a reader of the Dockerfile must know of each patch; those of a fix with one reason share a line."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in patches:
        words = (
            _("left out: {skip}").format(skip=row.skip)
            if row.skip
            else row.reason or _("changes {into}").format(into=row.into)
        )
        names = found.setdefault((row.fix, words), [])
        names.append(row.name.removeprefix(f"{row.fix}/") if names else row.name)
    return tuple(f"{', '.join(names)}: {words}" for (__, words), names in found.items())


def format_patch_details(patch: FixPatch) -> tuple[str, ...]:
    """Return the manifest of a patch as `rlbox fixes show` prints it: a title line, then one line a fact, indented."""
    facts = {
        "changes": ", ".join("/".join(path.split("/")[patch.strip :]) for path in map_files_to_added_text(patch.diff)),
        "of": " or ".join(patch.package),
        "made for": patch.made_for,
        "reason": patch.reason,
        "upstream": patch.upstream,
        "left out where the file holds": patch.upstream_has,
        "left out without the file": patch.absent,
        "marker": patch.marker,
    }
    made_from = [
        _("  made from: {path} {sha256}").format(path=path, sha256=sha256)
        for path, sha256 in sorted(patch.files.items())
    ]
    return (
        _("patch {patch}").format(patch=patch.name),
        *(f"  {name}: {text}" for name, text in facts.items() if text),
        *made_from,
    )


def _tree(name: str, target: Target, versions: Versions) -> GitSource | None:
    return None if versions.get(canonicalize_name(name)) else _find_git_source(name, target)


def _folder(package: str, target: Target, versions: Versions, site: str) -> str:
    part = _tree(package, target, versions) if package else None
    return part.into if part else site


def _row(patch: PatchFacts, name: str, fix: str, package: str, into: str, diff: str, skip: str) -> ResolvedPatch:
    facts: dict[str, Any] = patch.model_dump(
        include={"strip", "made_for", "reason", "upstream", "upstream_has", "absent", "marker"}
    )
    made_from = dict(sorted(patch.files.items()))
    return ResolvedPatch(
        name=name, fix=fix, package=package, into=into, made_from=made_from, diff=diff, skip=skip, **facts
    )
