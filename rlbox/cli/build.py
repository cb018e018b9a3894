"""`rlbox build` and `rlbox compile`. Imports are in the functions: TAB after `rlbox build` answers at once."""

from __future__ import annotations

from typing import Any

import click

from rlbox.app import App
from rlbox.cli.options import (
    dry_run_option,
    force_option,
    pass_app_with_shared_options,
    sources_option,
    target_argument,
)
from rlbox.i18n import _


@click.command("build")
@target_argument
@click.option("--no-cache", is_flag=True, help="Run every step again, ignoring the build cache.")
@click.option("--rebuild", is_flag=True, help="Rebuild even if nothing changed.")
@click.option("--hermetic", is_flag=True, help="Build from the store, with no network in any step.")
@click.option("--verify", is_flag=True, help="Build twice without cache and compare; name what differs.")
@force_option
@sources_option
@dry_run_option
@pass_app_with_shared_options
def build_image_unless_current(app: App, name: str, force: bool, **given: Any) -> int:
    """Build the image of TARGET.

    Nothing is built when the image's label proves that specs, lock, context and base are unchanged.

    \b
    Examples:
      rlbox build local
      rlbox build local --hermetic
    """
    from rlbox.doctor.gpu_choice import find_oldest_driver_branch_for_locked_cuda
    from rlbox.image.build import build_unless_current_and_report
    from rlbox.image.buildkit import BuildOptions
    from rlbox.planner.stack_check import require_consistent_stack_or_forced_conflict

    if app.dry_run and (driver := find_oldest_driver_branch_for_locked_cuda(app, name)):
        app.print_status(_("driver: {driver} or newer on the machine that runs it").format(driver=driver))
    conflict = require_consistent_stack_or_forced_conflict(app, name, force=force)
    return build_unless_current_and_report(app, name, BuildOptions(**given, forced_stack_conflict=conflict))


@click.command("compile")
@target_argument
@click.argument("wheel_names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--jobs",
    "max_jobs",
    type=click.IntRange(1),
    help="Compilers to run at once, at most; default: as many as memory and cores allow.",
)
@click.option("--verify", is_flag=True, help="Compile twice, the second time from nothing; name what differs.")
@click.option("--replace", "replace_locked_wheel", is_flag=True, help="Replace the wheel that the lock has.")
@sources_option
@dry_run_option
@pass_app_with_shared_options
def compile_wheels_into_store_and_lock(app: App, name: str, **given: Any) -> int:
    """Compile what `[[stack.compile]]` of TARGET names into wheels, keep them in the store, and lock them.

    A build sees its locked source, compiler and system at fixed paths, and no network. A killed build continues with
    the files it was working on.

    \b
    Examples:
      rlbox compile vast-5090-flash --dry-run
    """
    from rlbox.image.compile import (
        CompileOptions,
        compile_and_lock_missing_wheels,
        format_wheel_results,
        wheel_results_json,
    )

    results = compile_and_lock_missing_wheels(app, name, CompileOptions(**given))
    data, text = wheel_results_json(name, results), format_wheel_results(results)
    command = f"rlbox {'compile' if app.dry_run else 'build'} {name}"
    app.print_next(command)
    if app.dry_run:
        count = sum(result.wheel is None for result in results)
        would = _("compile {count} of {total} wheels") if count else _("compile nothing: the store has all of it")
        return app.print_dry_run(data, text, would.format(count=count, total=len(results)))
    app.output(data, text)
    return 0
