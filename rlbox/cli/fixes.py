"""`rlbox fixes`: list the fixes, show one, or explain what a target gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from rlbox.app import App
from rlbox.cli.options import complete_fix_or_target, pass_app_with_shared_options
from rlbox.config.schema import did_you_mean_hint
from rlbox.errors import SpecError, WorkFailed
from rlbox.fixes.catalogue import (
    find_fixes_matching_log_lines,
    load_fix_catalogue,
    load_target_with_fix_apt_packages,
    select_fixes_with_all_words,
)
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.fix import Fix
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.fixes.view import (
    evaluate_fixes,
    fix_catalogue_to_json,
    fix_evaluations_to_json,
    fix_to_json,
    format_fix,
    format_fix_evaluations,
    format_fix_table,
)
from rlbox.i18n import _
from rlbox.target.lock import load_lock

_NAMES = {"ls": "", "show": _("name a fix"), "explain": _("name a target"), "find": _("give a line of a log")}


@click.command("fixes")
@click.argument("action", metavar="[ls|show|explain|find]", default="ls", type=click.Choice(list(_NAMES)))
@click.argument("name", metavar="[ID|TARGET|TEXT]", required=False, shell_complete=complete_fix_or_target)
@pass_app_with_shared_options
def query_fixes(app: App, action: Literal["ls", "show", "explain", "find"], name: str | None) -> int:
    """List the fix catalog, show one fix, or explain which fixes a target gets, why, and with which settings.

    `find` finds the fix of a line of a log, or the fixes that have some words.

    Kinds: `baked` into the image, a `check` that only looks, a `remedy` that only advises, a `benign` warning.

    \b
    Examples:
      rlbox fixes show lcudart-link --lang zh
      rlbox fixes find 'cannot find -lcuda'
    """
    if bool(name) != (action != "ls"):
        raise click.UsageError(_NAMES[action] or _("ls takes no name"))
    if action == "explain":
        return _explain(app, name or "")
    fixes = load_fix_catalogue(app.project)
    if not name:
        app.output(fix_catalogue_to_json(fixes), format_fix_table(fixes))
        app.print_next("rlbox fixes show ID")
    elif action == "show":
        _show(app, fixes, name)
    else:
        _find(app, fixes, name)
    return 0


def _show(app: App, fixes: Sequence[Fix], fix_id: str) -> None:
    by_id = {fix.id: fix for fix in fixes}
    if fix_id not in by_id:
        raise SpecError(
            _("unknown fix {name!r}{suggest}").format(name=fix_id, suggest=did_you_mean_hint(fix_id, list(by_id))),
            next_step="rlbox fixes ls",
        )
    app.output(fix_to_json(by_id[fix_id]), format_fix(by_id[fix_id]))


def _find(app: App, fixes: Sequence[Fix], text: str) -> None:
    if matches := find_fixes_matching_log_lines(fixes, text):
        output = "\n\n".join(format_fix(fix) for fix in matches)
        app.output({"fixes": [fix_to_json(fix)["fix"] for fix in matches]}, output)
    elif near := select_fixes_with_all_words(fixes, text):
        app.print_status(_("no fix knows that line; these have its words"))
        app.output({"fixes": [], "near": [fix_to_json(fix)["fix"] for fix in near]}, format_fix_table(near))
        app.print_next("rlbox fixes show ID")
    else:
        raise WorkFailed(_("no fix knows that line"), next_step=_("read the complete log: rlbox diagnose LOG"))


def _explain(app: App, target_name: str) -> int:
    loaded = load_target_with_fix_apt_packages(app.project, target_name)
    lock = load_lock(app.project.own_or_shipped_lock_file(target_name))
    versions = map_packages_to_version_or_empty(loaded.target, lock)
    refusal = None
    try:
        render_fixes_or_raise_refusal(loaded.all_fixes, loaded.target, versions)
    except SpecError as error:
        refusal = error
    evaluations = evaluate_fixes(loaded.all_fixes, loaded.target, versions)
    data = fix_evaluations_to_json(target_name, evaluations, refusal.what if refusal else "")
    app.output(data, format_fix_evaluations(target_name, evaluations, show_file_contents=app.verbosity > 0))
    if refusal and not app.as_json:  # one object on stdout: `refused` says it there
        raise refusal
    if not refusal:
        app.print_next("rlbox fixes show ID")
    return refusal.exit_code if refusal else 0
