"""The fix catalogue as people and programs read it: all fixes, one fix, what a target gets and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlbox.amounts import columns
from rlbox.fixes.applies import Versions, judge
from rlbox.fixes.bake import filled_bake, template_values
from rlbox.fixes.fix import Fix
from rlbox.fixes.patches import chosen_package
from rlbox.fixes.words import BakedRow, baked_rows, condition_words, kind_of
from rlbox.i18n import _, get_language, join, ngettext, translate
from rlbox.target.target import Target

_SIGNS = {"env": "=", "path": "=", "link": " -> "}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A fix beside a target: whether the target gets it, the facts that decided, and what is baked there."""

    fix: Fix
    applies: bool
    reasons: tuple[str, ...]
    rows: tuple[BakedRow, ...]


def judge_all(fixes: Iterable[Fix], target: Target, versions: Versions) -> tuple[Judged, ...]:
    """Return every fix beside `target`, in the order in which fixes are applied; `SpecError` for a broken template."""
    found = []
    for fix in sorted(fixes, key=lambda fix: (fix.order, fix.id)):
        verdict = judge(fix, target, versions)
        rows = _rows_there(fix, target, versions) if verdict.applies else ()
        found.append(Judged(fix=fix, applies=verdict.applies, reasons=verdict.reasons, rows=rows))
    return tuple(found)


def _rows_there(fix: Fix, target: Target, versions: Versions) -> tuple[BakedRow, ...]:
    """Return what a fix bakes for a target; a patch that is left out there says why."""
    left = {
        patch.name: f"left out: {skip}"
        for patch in fix.bake.patch
        if (skip := chosen_package(patch, target, versions)[1])
    }
    rows = baked_rows(fix, filled_bake(fix, template_values(target, versions)))
    return tuple(replace(row, value=left.get(row.name, row.value)) if row.kind == "patch" else row for row in rows)


def list_json(fixes: Iterable[Fix]) -> dict[str, Any]:
    keys = {"id", "title", "title_zh", "covers", "heals", "benign"}
    return {"fixes": [{**fix.model_dump(mode="json", include=keys), "kind": kind_of(fix)} for fix in fixes]}


def list_text(fixes: Iterable[Fix]) -> str:
    """Return a line for each fix: id, kind, title, the numbers that it covers."""
    rows = ((fix, f"  [{' '.join(fix.covers)}]" if fix.covers else "") for fix in fixes)
    return "\n".join(columns((fix.id, kind_of(fix), _title(fix) + covers) for fix, covers in rows))


def fix_json(fix: Fix) -> dict[str, Any]:
    applies = fix.applies.model_dump(mode="json", exclude_defaults=True)
    bake = fix.bake.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data = fix.model_dump(mode="json", by_alias=True)
    return {"fix": {**data, "kind": kind_of(fix), "applies": applies, "bake": bake}}


def fix_text(fix: Fix) -> str:
    """Return everything of a fix as people read it."""
    return "\n".join(map(translate, _fix_lines(fix)))


def _fix_lines(fix: Fix) -> Iterator[str]:
    yield f"# {fix.id}: {_title(fix)}"
    yield _("kind: {kind}").format(kind=kind_of(fix))
    if fix.covers:
        yield _("covers: {ids}").format(ids=", ".join(fix.covers))
    if fix.heals:
        yield _("heals: {ids}").format(ids=", ".join(fix.heals))
    yield from ("", _("## why"), *fix.why.strip().splitlines())
    conditions = condition_words(fix.applies) or (_("every target"),)
    yield from ("", _("## applies when"), *(join("", ("- ", text)) for text in conditions))
    rows = [line for row in baked_rows(fix, fix.bake) for line in _row_lines(row, whole=True)]
    yield from ("", _("## what is baked"), *(rows or [_("nothing")]))
    if fix.check:
        yield from ("", _("## check ({when})").format(when=", ".join(fix.check.when)), *_indented(fix.check.run))
    if fix.signature:
        yield from ("", _("## what the log says"), *(f"  {row.example}" for row in fix.signature))
    yield from ("", _("## remedy"), *(fix.remedy_zh if get_language() == "zh" else fix.remedy).strip().splitlines())
    yield from ("", _("## source"), *(f"- {text}" for text in fix.source))
    if fix.untested:
        yield from ("", _("## no fault test"), fix.untested)


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.strip().splitlines()]


def _row_lines(row: BakedRow, *, whole: bool) -> list[str]:
    head = f"{row.kind:<8}{row.name}" + (f"{_SIGNS.get(row.kind, '  ')}{row.value}" if row.value else "")
    head += ":…" if row.kind == "path" else ""
    return [head, *(f"  {line}".rstrip() for line in row.text.strip("\n").splitlines())] if whole else [head]


def explain_json(target: str, judged: Iterable[Judged], refused: str) -> dict[str, Any]:
    """Return what a target gets and why as JSON types; `refused` is why its spec cannot be planned, or empty."""
    rows = list(judged)
    return {
        "target": target,
        "refused": refused or None,
        "applied": [
            {
                "id": one.fix.id,
                "title": one.fix.title,
                "kind": kind_of(one.fix),
                "because": list(one.reasons),
                "baked": [asdict(row) for row in one.rows],
            }
            for one in rows
            if one.applies
        ],
        "skipped": [{"id": one.fix.id, "because": list(one.reasons)} for one in rows if not one.applies],
    }


def explain_text(target: str, judged: Iterable[Judged], *, whole: bool) -> str:
    """Return what a target gets and why as people read it; `whole` shows the lines of files and hooks."""
    rows = list(judged)
    given = [one for one in rows if one.applies and kind_of(one.fix) in ("baked", "check")]
    advice = [one for one in rows if one.applies and one not in given]
    left = [one for one in rows if not one.applies]
    count = len(given)
    lines = [
        ngettext("# {target}: {count} fix applies", "# {target}: {count} fixes apply", count).format(
            target=target, count=count
        )
    ]
    for one in given:
        lines += ["", f"{one.fix.id} ({kind_of(one.fix)}): {_title(one.fix)}"]
        lines += [_("  because {reasons}").format(reasons=join("; ", one.reasons))]
        lines += [f"  {line}" for row in one.rows for line in _row_lines(row, whole=whole)]
    advises = _("# {count} more only know a line of a log, and the remedy or that it is benign")
    lines += ["", advises.format(count=len(advice))]
    lines += columns((one.fix.id, _title(one.fix)) for one in advice)
    skips = ngettext("# {count} fix is skipped", "# {count} fixes are skipped", len(left))
    lines += ["", skips.format(count=len(left))]
    lines += columns((one.fix.id, translate(join("; ", one.reasons))) for one in left)
    return "\n".join(map(translate, lines))


def _title(fix: Fix) -> str:
    return fix.title_zh if get_language() == "zh" else fix.title
