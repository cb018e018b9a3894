"""The fix catalogue as text and JSON: all fixes, one fix, what a target gets and why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlbox.amounts import align_translated, decimal_and_gib_size_text
from rlbox.fixes.conditions import VersionMap, evaluate_fix
from rlbox.fixes.fix import Applies, Bake, Fix, FixPatch, map_files_to_added_text
from rlbox.fixes.patches import find_package_or_git_source_for_patch
from rlbox.fixes.render import HOOKS_DIR, build_fix_template_values, render_bake_keeping_patches_and_refusals
from rlbox.i18n import _, get_language, join, ngettext, translate
from rlbox.target.target import Target

BakeKind = Literal[
    "package", "env", "path", "file", "link", "hook", "run", "secret", "ray", "refuse", "patch",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BakeEntry:
    """One thing that a fix bakes: its kind, its name, what it is set to; `text` are the lines of a file."""

    kind: BakeKind
    name: str
    value: str = ""
    text: str = ""


def get_fix_category(fix: Fix) -> Literal["baked", "check", "remedy", "benign"]:
    if fix.benign:
        return "benign"
    if fix.has_bake_entries:
        return "baked"
    return "check" if fix.check else "remedy"


def format_conditions_as_toml(applies: Applies) -> tuple[str, ...]:
    """Return every condition as the fix's file has it; nothing when the fix is for every target."""
    conditions = applies.model_dump(mode="json", exclude_defaults=True)
    return tuple(f"{key} = {json.dumps(value)}" for key, value in conditions.items())


def list_bake_entries(fix: Fix, bake: Bake, skip_by_patch: Mapping[str, str] | None = None) -> Iterator[BakeEntry]:
    """Yield what a fix bakes; `skip_by_patch` maps patches to why they are left out, or to an empty text."""
    yield from (BakeEntry(kind="package", name=name) for name in bake.packages)
    yield from (BakeEntry(kind="env", name=name, value=value) for name, value in sorted(bake.env.items()))
    for name, folders in sorted(bake.path.items()):
        yield BakeEntry(kind="path", name=name, value=":".join(folders))
    for file in bake.file:
        yield BakeEntry(kind="file", name=file.path, value=file.mode, text=file.text)
    yield from (BakeEntry(kind="link", name=link.path, value=link.to) for link in bake.link)
    if bake.hook:
        yield BakeEntry(kind="hook", name=f"{HOOKS_DIR}/{fix.order:02d}-{fix.id}.sh", text=bake.hook)
    if bake.run.shm_gib:
        size = decimal_and_gib_size_text(bake.run.shm_gib)
        yield BakeEntry(kind="run", name=_("shared memory"), value=_("at least {asked_text}").format(asked_text=size))
    yield from (BakeEntry(kind="secret", name=group[0], value=" ".join(group[1:])) for group in bake.aliases)
    for name, limit in sorted(bake.run.ulimits.items()):
        yield BakeEntry(kind="run", name=f"ulimit {name}", value=limit)
    for role, words in (("both", bake.ray.common), ("head", bake.ray.head), ("worker", bake.ray.worker)):
        yield from (BakeEntry(kind="ray", name=role, value=word) for word in words if word)
    if bake.ray.before:
        yield BakeEntry(kind="ray", name=_("before it starts"), text=bake.ray.before)
    for row in bake.refuse:
        yield BakeEntry(kind="refuse", name=row.condition, value=join("; ", (_(row.says), _(row.next))))
    for patch in bake.patch:
        skip = (skip_by_patch or {}).get(patch.name)
        value = _("left out: {skip}").format(skip=skip) if skip else _(patch.reason)
        yield BakeEntry(kind="patch", name=patch.name, value=value, text=_describe_patch(patch))


def _describe_patch(patch: FixPatch) -> str:
    facts = {
        _("changes"): ", ".join(
            "/".join(path.split("/")[patch.strip :]) for path in map_files_to_added_text(patch.diff)
        ),
        _("of"): " or ".join(patch.package),
        _("made for"): patch.made_for,
        _("reason"): _(patch.reason),
        _("upstream"): patch.upstream,
        _("left out where the file holds"): patch.upstream_has,
        _("left out without the file"): patch.absent,
        _("marker"): patch.marker,
        **{_("made from: {path}").format(path=path): sha256 for path, sha256 in sorted(patch.files.items())},
    }
    return join("\n", [*(join(": ", (name, text)) for name, text in facts.items() if text), "", patch.diff])


_SIGNS = {"env": "=", "path": "=", "link": " -> "}


@dataclass(frozen=True, kw_only=True)
class FixEvaluation:
    """A fix beside a target: whether the target gets it, the facts that decided, and what is baked there."""

    fix: Fix
    applies: bool
    reasons: tuple[str, ...]
    bake_entries: tuple[BakeEntry, ...]


def evaluate_fixes(fixes: Iterable[Fix], target: Target, versions: VersionMap) -> tuple[FixEvaluation, ...]:
    found = []
    values = build_fix_template_values(target, versions)
    for fix in sorted(fixes, key=lambda fix: (fix.order, fix.id)):
        verdict = evaluate_fix(fix, target, versions)
        skips = {
            patch.name: find_package_or_git_source_for_patch(patch, target, versions).skip_reason
            for patch in fix.bake.patch
        }
        rows = (
            tuple(list_bake_entries(fix, render_bake_keeping_patches_and_refusals(fix, values), skips))
            if verdict.applies
            else ()
        )
        found.append(FixEvaluation(fix=fix, applies=verdict.applies, reasons=verdict.reasons, bake_entries=rows))
    return tuple(found)


def fix_catalogue_to_json(fixes: Iterable[Fix]) -> dict[str, Any]:
    keys = {"id", "title", "title_zh", "heals", "benign"}
    return {"fixes": [{**fix.model_dump(mode="json", include=keys), "kind": get_fix_category(fix)} for fix in fixes]}


def format_fix_table(fixes: Iterable[Fix]) -> str:
    return "\n".join(align_translated((fix.id, get_fix_category(fix), _title(fix)) for fix in fixes))


def fix_to_json(fix: Fix) -> dict[str, Any]:
    applies = fix.applies.model_dump(mode="json", exclude_defaults=True)
    bake = fix.bake.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data = fix.model_dump(mode="json", by_alias=True)
    return {"fix": {**data, "kind": get_fix_category(fix), "applies": applies, "bake": bake}}


def format_fix(fix: Fix) -> str:
    return "\n".join(map(translate, _fix_lines(fix)))


def _fix_lines(fix: Fix) -> Iterator[str]:
    yield f"# {fix.id}: {_title(fix)}"
    yield _("kind: {kind}").format(kind=get_fix_category(fix))
    if fix.heals:
        yield _("heals: {ids}").format(ids=", ".join(fix.heals))
    yield from ("", _("## why"), *((get_language() == "zh" and fix.why_zh) or fix.why).strip().splitlines())
    conditions = format_conditions_as_toml(fix.applies) or (_("every target"),)
    yield from ("", _("## applies when"), *(join("", ("- ", text)) for text in conditions))
    rows = [line for row in list_bake_entries(fix, fix.bake) for line in _row_lines(row, whole=True)]
    yield from ("", _("## settings in the image"), *(rows or [_("nothing")]))
    if fix.check:
        yield from (
            "",
            _("## check ({when})").format(when=", ".join(fix.check.when)),
            *(f"  {line}".rstrip() for line in fix.check.run.strip().splitlines()),
        )
    if fix.signature:
        yield from ("", _("## log patterns"), *(f"  {row.example}" for row in fix.signature))
    yield from ("", _("## remedy"), *(fix.remedy_zh if get_language() == "zh" else fix.remedy).strip().splitlines())
    if fix.source:
        yield from ("", _("## source"), *(f"- {text}" for text in fix.source))
    if fix.untested:
        yield from ("", _("## no fault test"), _(fix.untested))


def _row_lines(row: BakeEntry, *, whole: bool) -> list[str]:
    value = f"{_SIGNS.get(row.kind, '  ')}{translate(row.value)}" if row.value else ""
    head = f"{row.kind:<8}{translate(row.name)}{value}"
    head += ":…" if row.kind == "path" else ""
    lines = translate(row.text).strip("\n").splitlines()
    return [head, *(f"  {line}".rstrip() for line in lines)] if whole else [head]


def fix_evaluations_to_json(target: str, evaluations: Iterable[FixEvaluation], refusal: str) -> dict[str, Any]:
    rows = list(evaluations)
    return {
        "target": target,
        "refused": refusal or None,
        "applied": [
            {
                "id": one.fix.id,
                "title": one.fix.title,
                "kind": get_fix_category(one.fix),
                "because": list(one.reasons),
                "baked": [asdict(row) for row in one.bake_entries],
            }
            for one in rows
            if one.applies
        ],
        "skipped": [{"id": one.fix.id, "because": list(one.reasons)} for one in rows if not one.applies],
    }


def format_fix_evaluations(target: str, evaluations: Iterable[FixEvaluation], *, show_file_contents: bool) -> str:
    rows = list(evaluations)
    given = [one for one in rows if one.applies and get_fix_category(one.fix) in ("baked", "check")]
    advice = [one for one in rows if one.applies and one not in given]
    left = [one for one in rows if not one.applies]
    count = len(given)
    lines: list[str] = [
        ngettext("# {target}: {count} fix applies", "# {target}: {count} fixes apply", count).format(
            target=target, count=count
        )
    ]
    for one in given:
        lines += ["", f"{one.fix.id} ({get_fix_category(one.fix)}): {_title(one.fix)}"]
        lines += [_("  because {reasons}").format(reasons=join("; ", one.reasons))]
        lines += [f"  {line}" for row in one.bake_entries for line in _row_lines(row, whole=show_file_contents)]
    advises = _("# {count} more only know a line of a log, and the remedy or that it is benign")
    lines += ["", advises.format(count=len(advice))]
    lines += align_translated((one.fix.id, _title(one.fix)) for one in advice)
    skips = ngettext("# {count} fix is skipped", "# {count} fixes are skipped", len(left))
    lines += ["", skips.format(count=len(left))]
    lines += align_translated((one.fix.id, translate(join("; ", one.reasons))) for one in left)
    return "\n".join(map(translate, lines))


def _title(fix: Fix) -> str:
    return fix.title_zh if get_language() == "zh" else fix.title
