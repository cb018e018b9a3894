"""Which source patches a target gets, where in the image they start, and the manifest that the build step applies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlbox.fixes.conditions import VersionMap, check_package_requirement, get_own_and_repo_package_names
from rlbox.fixes.fix import Fix
from rlbox.fixes.render import build_fix_template_values, render_fix_template
from rlbox.i18n import _
from rlbox.target.target import GitSource, PatchFacts, Target


@dataclass(frozen=True, kw_only=True)
class ResolvedPatch:
    """A patch of a target.

    `name` is `FIX/PATCH`, or the file of a target's own patch, whose `fix` is empty. `into` is a folder of the image.
    `skip` says why the patch is left out, and is empty when it is not. The diff is `diff`, or the file
    `diff_file_in_image` of the image, which a git part has.
    """

    name: str
    fix_id_or_empty: str
    facts: PatchFacts
    package: str
    into: str
    diff: str
    skip_reason: str
    diff_file_in_image: str = ""


def resolve_patches_with_skipped(
    applicable_fixes: Iterable[Fix], target: Target, versions: VersionMap, target_patch_texts: Mapping[str, str]
) -> tuple[ResolvedPatch, ...]:
    """Return the patches of a target: those of its fixes in their order, then its own.

    `applicable_fixes`: The fixes that apply to the target.
    `target_patch_texts`: The target's own patches, file name to text.
    Raises SpecError: A folder's template is broken.
    """
    values = build_fix_template_values(target, versions)
    rows = []
    for fix in applicable_fixes:
        for patch in fix.bake.patch:
            found = find_package_or_git_source_for_patch(patch, target, versions)
            into = render_fix_template(patch.into, values, f"templates/fixes/{fix.id}.toml")
            rows.append(
                ResolvedPatch(
                    name=f"{fix.id}/{patch.name}",
                    fix_id_or_empty=fix.id,
                    facts=patch,
                    package=found.package_name,
                    into=into or (found.git_source.into if found.git_source else values["site"]),
                    diff=patch.diff,
                    skip_reason=found.skip_reason,
                )
            )
    folders = {part.name: part.into for part in target.git}
    for own in target.patches:
        found = find_package_or_git_source_for_patch(own, target, versions)
        rows.append(
            ResolvedPatch(
                name=own.file,
                fix_id_or_empty="",
                facts=own,
                package=found.package_name,
                into=own.into,
                diff=target_patch_texts.get(own.file, ""),
                skip_reason=found.skip_reason,
                diff_file_in_image=f"{folders[own.part]}/{own.file}" if own.part else "",
            )
        )
    return tuple(rows)


class PackageOrGitSourceOrSkip(NamedTuple):
    """The package or git part that a patch changes, or why the patch is skipped."""

    package_name: str = ""
    git_source: GitSource | None = None
    skip_reason: str = ""


def find_package_or_git_source_for_patch(
    patch: PatchFacts, target: Target, versions: VersionMap
) -> PackageOrGitSourceOrSkip:
    """Return the first package or git part of a patch that the stack has.

    A git part has no version: there, content alone decides. Beside a package of its name, as a tree that is kept for
    its examples, it is left as it is: the package is what programs import.
    """
    against = []
    for text in patch.package:
        name = canonicalize_name(Requirement(text).name)
        parts = (part for part in target.git if name in get_own_and_repo_package_names(part))
        if not versions.get(name) and (part := next(parts, None)):
            return PackageOrGitSourceOrSkip(name, part)
        holds, fact = check_package_requirement(text, versions)
        if holds:
            return PackageOrGitSourceOrSkip(name)
        against.append(fact)
    return PackageOrGitSourceOrSkip(skip_reason="; ".join(against))


def has_patches_to_apply(patches: Iterable[ResolvedPatch]) -> bool:
    return any(not row.skip_reason for row in patches)


def render_patch_manifest_json(
    target_name: str, patches: Iterable[ResolvedPatch], layer_dirs: Iterable[str] = ()
) -> str:
    """Return what templates/scripts/apply_patches.py reads, as JSON.

    `layer_dirs`: Folders of the layers that a build step finds, the lowest first.
    """
    rows = [
        {
            "name": patch.name,
            "fix": patch.fix_id_or_empty,
            "package": patch.package,
            "into": patch.into,
            "strip": patch.facts.strip,
            "made_for": patch.facts.made_for,
            "made_from": dict(sorted(patch.facts.files.items())),
            **patch.facts.model_dump(include={"reason", "upstream", "upstream_has", "absent", "marker"}),
            "diff": patch.diff,
            "skip": patch.skip_reason,
            **({"diff_from": patch.diff_file_in_image} if patch.diff_file_in_image else {}),
        }
        for patch in patches
    ]
    data = {"schema": 1, "target": target_name, "layers": [*layer_dirs], "patches": rows}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def format_grouped_patch_summaries(patches: Iterable[ResolvedPatch]) -> tuple[str, ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in patches:
        words = (
            _("left out: {skip}").format(skip=row.skip_reason)
            if row.skip_reason
            else row.facts.reason or _("changes {into}").format(into=row.into)
        )
        names = found.setdefault((row.fix_id_or_empty, words), [])
        names.append(row.name.removeprefix(f"{row.fix_id_or_empty}/") if names else row.name)
    return tuple(f"{', '.join(names)}: {words}" for (__, words), names in found.items())
