"""`rlbox fixes`: list the fixes, show one, or explain what a target gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.completers import complete_fix, complete_target
from rlbox.cli.options import pass_app_with_shared_options
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.fixes.fix import Fix


def _complete_fix_or_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the targets for `explain`, else the ids of fixes, read from files alone."""
    if ctx.params.get("action") == "explain":
        return complete_target(ctx, param, incomplete)
    return complete_fix(ctx, param, incomplete)


_NAMES = {
    "ls": "",
    "show": _("name a fix"),
    "explain": _("name a target"),
    "find": _("give a line of a log"),
}


@click.command()
@click.argument("action", metavar="[ls|show|explain|find]", default="ls", type=click.Choice(list(_NAMES)))
@click.argument("name", metavar="[ID|TARGET|TEXT]", required=False, shell_complete=_complete_fix_or_target)
@pass_app_with_shared_options
def fixes(app: App, action: str, name: str | None) -> int:
    """List the fix catalog, show one fix, or explain which fixes a target gets, why, and with which settings.

    `find` finds the fix of a line of a log, or the fixes that have some words.

    Kinds: `baked` into the image, a `check` that only looks, a `remedy` that only advises, a `benign` warning.

    \b
    Examples:
      rlbox fixes ls
      rlbox fixes show lcudart-link --lang zh
      rlbox fixes explain vast-5090
      rlbox fixes find 'cannot find -lcuda'
    """
    if bool(name) != (action != "ls"):
        raise click.UsageError(_NAMES[action] or _("ls takes no name"))
    does = {"show": _show, "find": _find, "explain": _explain}
    return does[action](app, name) if name else _list(app)


def _list(app: App) -> int:
    from rlbox.fixes.view import catalogue_json, format_catalogue

    fixes, code = _readable(app)
    app.result(catalogue_json(fixes), format_catalogue(fixes))
    app.print_status("next: rlbox fixes show ID")
    return code


def _show(app: App, name: str) -> int:
    from rlbox.config.schema import suggest_similar
    from rlbox.fixes.view import fix_json, format_fix

    fixes, code = _readable(app)
    known = {fix.id: fix for fix in fixes}
    if name not in known:
        raise SpecError(
            _("unknown fix {name!r}{suggest}").format(name=name, suggest=suggest_similar(name, list(known))),
            next_step="rlbox fixes ls",
        )
    app.result(fix_json(known[name]), format_fix(known[name]))
    return code


def _find(app: App, text: str) -> int:
    from rlbox.fixes.catalogue import find_fixes_by_log, select_fixes_with_all_words
    from rlbox.fixes.view import fix_json, format_catalogue, format_fix

    fixes, code = _readable(app)
    found = find_fixes_by_log(fixes, text)
    if not found and (near := select_fixes_with_all_words(fixes, text)):
        app.print_status("no fix knows that line; these have its words")
        app.result({"fixes": [], "near": [fix_json(fix)["fix"] for fix in near]}, format_catalogue(near))
        app.print_status("next: rlbox fixes show ID")
        return code
    if not found:
        raise WorkFailed(_("no fix knows that line"), next_step=_("read the complete log: rlbox diagnose LOG"))
    told = "\n\n".join(format_fix(fix) for fix in found)
    app.result({"fixes": [fix_json(fix)["fix"] for fix in found]}, told)
    return code


def _readable(app: App) -> tuple[Sequence[Fix], int]:
    """Return the fixes that can be read, what is wrong with others being said, and the exit code that this has."""
    from rlbox.fixes.catalogue import load_readable_fixes

    fixes, broken = load_readable_fixes(app.project)
    for error in broken:
        app.print_status(_("left out: {error}").format(error=error))
    return fixes, broken[0].exit_code if broken else 0


def _explain(app: App, name: str) -> int:
    from rlbox.fixes.catalogue import load_target_with_fix_packages
    from rlbox.fixes.conditions import list_stack_versions
    from rlbox.fixes.render import select_and_render_fixes
    from rlbox.fixes.view import evaluate_fixes, evaluations_json, format_evaluations
    from rlbox.target.lock import load_lock

    loaded = load_target_with_fix_packages(app.project, name)
    versions = list_stack_versions(loaded.target, load_lock(app.project.own_or_shipped_lock_file(name)))
    refusal = None
    try:
        select_and_render_fixes(loaded.all_fixes, loaded.target, versions)
    except SpecError as error:
        refusal = error
    judged = evaluate_fixes(loaded.all_fixes, loaded.target, versions)
    data = evaluations_json(name, judged, refusal.what if refusal else "")
    app.result(data, format_evaluations(name, judged, show_file_contents=app.verbosity > 0))
    if refusal and not app.as_json:  # one object on stdout: `refused` says it there
        raise refusal
    if not refusal:
        app.print_status("next: rlbox fixes show ID")
    return refusal.exit_code if refusal else 0
