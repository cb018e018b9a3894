"""`rlbox apply`: install a target's locked environment on this machine."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import click

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.cli.completers import complete_target
from rlbox.cli.confirmation import require_confirmation
from rlbox.cli.options import dry_run_option, force_option, pass_app_with_shared_options, sources_option
from rlbox.i18n import _
from rlbox.image.plan import load_image_plan

if TYPE_CHECKING:
    from rlbox.image.plan import ImagePlan
    from rlbox.provision.apply import ApplyOptions
    from rlbox.provision.layout import Layout


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--check", is_flag=True, help="Only compare; exit code 1 when something differs.")
@click.option("--remove", is_flag=True, help="Undo everything that apply changed.")
@click.option(
    "--prefix", metavar="DIR", help="Write below DIR and nowhere else [without root: a folder in rlbox's cache]."
)
@click.option("--offline", is_flag=True, help="Take every file from the store.")
@click.option("--no-packages", "packages", is_flag=True, flag_value=False, default=True, help="Do not touch apt.")
@click.option("--python", metavar="FILE", default="", help="Python interpreter for the environment.")
@click.option("--data", metavar="DIR", help="Directory that is the data disk [RLBOX_DATA].")
@click.option("--yes", is_flag=True, help="Do not ask before changing the machine's own paths.")
@force_option
@sources_option
@dry_run_option
@pass_app_with_shared_options
def apply(
    app: App,
    name: str,
    check: bool,
    remove: bool,
    prefix: str | None,
    offline: bool,
    packages: bool,
    python: str,
    data: str | None,
    yes: bool,
    force: bool,
    sources: str,
) -> int:
    """Install the lock of TARGET on this machine without Docker: Python stack, fixes, checks.

    As root and without --prefix the machine's own paths are changed, for every shell on it: that is asked before.

    \b
    Examples:
      rlbox apply local --dry-run
      rlbox apply local --prefix /root/autodl-tmp/rlbox --dry-run
    """
    from rlbox.provision.apply import ApplyOptions
    from rlbox.provision.locations import choose_layout

    if check and remove:
        raise click.UsageError(_("--check and --remove exclude each other."))
    image = load_image_plan(app.project, name)
    layout = choose_layout(image, prefix, data)
    if remove:
        return _remove(app, name, layout)
    from rlbox.planner.stack_check import require_consistent_stack

    options = ApplyOptions(
        overridden_stack_conflict=require_consistent_stack(app, name, force=force),
        sources_profile=sources,
        offline=offline,
        apt_opt_out_reason="" if packages else "--no-packages was given",
        python_path=_absolute(python),
    )
    return _apply(app, image, layout, options, check=check, yes=yes)


def _absolute(python: str) -> str:
    """Return the path of a file or program; a link stays one, for an environment is known by where that lies."""
    found = shutil.which(python) if python else ""
    if found is None:
        raise click.UsageError(_("--python {python}: no such program.").format(python=python))
    return os.path.abspath(found) if found else ""


def _apply(app: App, image: ImagePlan, layout: Layout, options: ApplyOptions, *, check: bool, yes: bool) -> int:
    """Say what differs, or was brought; a machine that is at the lock is at it only if its checks pass."""
    from rlbox.provision.plan import format_apply_output, format_comparison_output
    from rlbox.provision.provision import provision_target, run_target_fix_checks

    def consent(changes: int) -> None:
        if not layout.prefix:
            _warn(app, image.target)
            require_confirmation(
                app, yes, f"make {counted(changes, 'change', 'changes')} at / for target {image.target}"
            )

    only_look = check or app.dry_run
    prepared, plan, done = provision_target(app, image, layout, options, plan_only=only_look, before_changes=consent)
    if only_look and (plan.steps or not check):
        told = format_comparison_output(prepared.desired, plan)
        if not check:
            return app.planned(*told, _would(app, layout, image.target, len(plan.steps), yes=yes))
        app.result(*told)
        return 1 if plan.steps else 0
    layout = prepared.desired.layout
    checks = run_target_fix_checks(layout)
    app.result(*format_apply_output(prepared.desired, plan.skipped, done.steps, done.kept_copies, checks))
    app.print_status(f"next: . {layout.rlbox_dir}/libexec/init.sh, or rlbox run JOB --place here")
    partial = {row.source_id for row in plan.skipped}
    return 1 if any(row.level == "error" and row.id not in partial for row in checks[1]) else 0


def _would(app: App, layout: Layout, target: str, changes: int, *, yes: bool) -> str:
    """Return what a real run would do; of the machine's own paths, say what that means."""
    if layout.prefix or not changes:
        return f"make {counted(changes, 'change', 'changes')}"
    _warn(app, target)
    made = f"make {counted(changes, 'change', 'changes')} at /"
    return made if yes else f"{made}, once you said yes"


def _warn(app: App, target: str) -> None:
    app.print_status(
        "the machine's own paths are changed: every shell on it gets the target's python, ray and PATH; "
        f"rlbox apply {target} --dry-run shows each change, --remove lays all back, --prefix DIR keeps it to a folder"
    )


def _remove(app: App, name: str, layout: Layout) -> int:
    from rlbox.provision.provision import remove_target

    state, paths, notes = remove_target(app, name, layout)
    lines = [f"{name}  {state}: {counted(len(paths), 'thing', 'things')} laid back", *notes]
    if app.dry_run:
        lines = [f"remove      {path}" for path in paths]
    data = {"target": name, "prefix": layout.prefix, "state": state, "paths": list(paths), "notes": list(notes)}
    if app.dry_run:
        would = (
            f"lay back {counted(len(paths), 'thing', 'things')}"
            if paths
            else "change nothing: nothing of it is laid here"
        )
        return app.planned(data, "\n".join(lines), would)
    app.result(data, "\n".join(lines))
    return 0
