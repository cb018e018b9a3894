"""`rlbox apply`: install a target's locked environment on this machine."""

from __future__ import annotations

import os
import shutil
from typing import Any

import click

from rlbox.amounts import pad_translated
from rlbox.app import App
from rlbox.cli.options import (
    confirm_unless_yes,
    dry_run_option,
    force_option,
    pass_app_with_shared_options,
    sources_option,
    target_argument,
)
from rlbox.i18n import _, ngettext, translate
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.planner.stack_check import require_consistent_stack_or_forced_conflict
from rlbox.provision.apply import ApplyOptions
from rlbox.provision.layout import Layout
from rlbox.provision.locations import choose_apply_layout_from_options
from rlbox.provision.plan import format_apply_plan_output, format_apply_result_output
from rlbox.provision.provision import (
    provision_target,
    run_doctor_fix_checks_in_layout,
    uninstall_target_if_applied_refuse_other,
)


@click.command("apply")
@target_argument
@click.option("--check", is_flag=True, help="Only compare; exit code 1 when something differs.")
@click.option("--remove", is_flag=True, help="Undo everything that apply changed.")
@click.option(
    "--prefix", metavar="DIR", help="Write below DIR and nowhere else [without root: a folder in rlbox's cache]."
)
@click.option("--offline", is_flag=True, help="Take every file from the store.")
@click.option("--no-packages", is_flag=True, help="Do not touch apt.")
@click.option("--python", metavar="FILE", default="", help="Python interpreter for the environment.")
@click.option("--data", metavar="DIR", help="Directory that is the data disk [RLBOX_DATA].")
@click.option("--yes", is_flag=True, help="Change the machine's own paths without confirmation.")
@force_option
@sources_option
@dry_run_option
@pass_app_with_shared_options
def install_check_or_remove_target_without_docker(
    app: App,
    name: str,
    check: bool,
    remove: bool,
    prefix: str | None,
    no_packages: bool,
    python: str,
    data: str | None,
    yes: bool,
    force: bool,
    **given: Any,
) -> int:
    """Install the lock of TARGET on this machine without Docker: Python stack, fixes, checks.

    As root without --prefix, it changes the machine's own paths for all shells, after a confirmation.

    \b
    Examples:
      rlbox apply local --dry-run
    """
    if check and remove:
        raise click.UsageError(_("--check and --remove exclude each other."))
    image = load_image_plan(app.project, name)
    layout = choose_apply_layout_from_options(image, prefix, data)
    if remove:
        return _remove(app, name, layout)
    require_consistent_stack_or_forced_conflict(app, name, force=force)
    options = ApplyOptions(
        python_path=_find_program(python),
        apt_opt_out_reason=_("--no-packages was given") if no_packages else "",
        **given,
    )
    return _apply(app, image, layout, options, check=check, yes=yes)


def _find_program(python: str) -> str:
    """Return the path of a file or program; a link stays one, for an environment is known by where that lies."""
    path = shutil.which(python) if python else ""
    if path is None:
        raise click.UsageError(_("--python {python}: no such program.").format(python=python))
    return os.path.abspath(path) if path else ""


def _apply(app: App, image: ImagePlan, layout: Layout, options: ApplyOptions, *, check: bool, yes: bool) -> int:
    """Say what differs, or was brought; a machine that is at the lock is at it only if its checks pass."""

    def ask(changes: int) -> None:
        if not layout.prefix:
            _warn_of_machine_paths(app, image.target)
            question = ngettext(
                "make {count} change at / for target {target}", "make {count} changes at / for target {target}", changes
            )
            confirm_unless_yes(app, yes, question.format(count=changes, target=image.target))

    only_look = check or app.dry_run
    prepared, plan, done = provision_target(app, image, layout, options, plan_only=only_look, before_changes=ask)
    if only_look and (plan.steps or not check):
        output = format_apply_plan_output(prepared.desired, plan)
        if check:
            app.output(*output)
            return 1 if plan.steps else 0
        count = len(plan.steps)
        would = ngettext("make {count} change", "make {count} changes", count)
        if plan.steps and not layout.prefix:
            _warn_of_machine_paths(app, image.target)
            would = ngettext("make {count} change at /", "make {count} changes at /", count)
            if not yes:
                would = ngettext(
                    "make {count} change at / after confirmation", "make {count} changes at / after confirmation", count
                )
        return app.print_dry_run(*output, would.format(count=count))
    layout = prepared.desired.layout
    checks = run_doctor_fix_checks_in_layout(layout)
    app.output(*format_apply_result_output(prepared.desired, plan.skipped, done.steps, done.kept_copies, checks))
    script = f". {layout.rlbox_dir}/libexec/init.sh"
    app.print_next(_("{command}, or rlbox run JOB --place here").format(command=script))
    partial = {row.source_id for row in plan.skipped}
    return 1 if any(row.level == "error" and row.id not in partial for row in checks[1]) else 0


def _warn_of_machine_paths(app: App, target: str) -> None:
    app.print_status(
        _(
            "the machine's own paths are changed: every shell on it gets the target's python, ray and PATH; rlbox "
            "apply {target} --dry-run shows each change, --remove restores all, --prefix DIR changes one folder only"
        ).format(target=target)
    )


def _remove(app: App, name: str, layout: Layout) -> int:
    state, paths, notes = uninstall_target_if_applied_refuse_other(app, name, layout)
    count = len(paths)
    data = {"target": name, "prefix": layout.prefix, "state": state, "paths": list(paths), "notes": list(notes)}
    if app.dry_run:
        would = ngettext("restore {count} path", "restore {count} paths", count).format(count=count)
        unchanged = _("change nothing: it is not installed here")
        lines = [f"{pad_translated(_('remove'), 11)} {path}" for path in paths]
        return app.print_dry_run(data, "\n".join(lines), would if paths else unchanged)
    text = ngettext("{target}  {state}: {count} path restored", "{target}  {state}: {count} paths restored", count)
    lines = [
        text.format(target=name, state=_("removed") if state == "removed" else _("unchanged"), count=count),
        *notes,
    ]
    app.output(data, "\n".join(map(translate, lines)))
    return 0
