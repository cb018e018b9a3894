"""`rlbox onstart`: print the on-start script of a target of vast.ai."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.completers import complete_target
from rlbox.cli.options import pass_app_with_shared_options
from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.image.forms import OnstartScript
    from rlbox.target.target import Target


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option(
    "--add",
    "added",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Shell commands of yours, run last at every start.",
)
@pass_app_with_shared_options
def onstart(app: App, name: str, added: Path | None) -> None:
    """Print the on-start script of TARGET: at most 4048 characters, packed when it would be longer.

    It runs at every start of the instance, may be run again at any time, and continues where it was cut off. It
    writes its log to onstart.log on the data disk, and its outcome to onstart.status in the same folder.

    \b
    Examples:
      rlbox onstart vast-5090 > onstart.sh
      rlbox onstart vast-5090 --json
    """
    from rlbox.image.forms import ONSTART_FIELD_LIMIT
    from rlbox.vast.request import parse_docker_options

    require_vast_target_by_name(app, name)
    target, made = render_target_onstart(app, name, _read_added_script(added))
    parse_docker_options(target)  # for what it refuses
    facts = {
        "target": name,
        "form": made.encoding,
        "characters": made.field_characters,
        "bytes": made.field_bytes,
        "limit": ONSTART_FIELD_LIMIT,
    }
    template = {"options": target.vast.options, "mode": target.vast.mode, "disk_gb": target.disk.need_gib}
    app.result({**facts, **template, "script": made.field_text}, made.field_text.rstrip("\n"))
    app.print_status(
        f"{made.field_characters} of {ONSTART_FIELD_LIMIT} characters ({made.encoding}); "
        f"log: {target.disk.mount}/onstart.log"
    )
    app.print_status(f"next: rlbox vast search {name}, or paste it into the On-start Script field of a template")


def require_vast_target_by_name(app: App, target_name: str, *, advise_target_option: bool = False) -> Target:
    """Return a target; `SpecError` with those that are for vast.ai where it is for no machine of theirs.

    Parameters
    ----------
    advise_target_option
        Whether the advice is `--target NAME`, as of a job that is to run on another target than its own.
    """
    from rlbox.image.forms import require_vast_target
    from rlbox.target.target import load_target

    target = load_target(app.project, target_name).target
    try:
        require_vast_target(target)
    except SpecError as error:
        names = ", ".join(_for_vast(app))
        if advise_target_option:
            error.next_step = _(
                "--target NAME, one of {names}; or create your own: rlbox init NAME --machine 5090"
            ).format(names=names)
        else:
            error.next_step = _('choose one of: {names}; or in your own target, hardware.platform = "vast"').format(
                names=names
            )
        raise
    return target


def _for_vast(app: App) -> Iterator[str]:
    from rlbox.target.target import load_target

    for name in app.project.targets():
        with contextlib.suppress(SpecError):
            if load_target(app.project, name).target.hardware.platform == "vast":
                yield name


def render_target_onstart(
    app: App, target_name: str, added_script: str, rlbox_upload_dir: str = "", *, ignore_stack_conflicts: bool = False
) -> tuple[Target, OnstartScript]:
    """Return a target and its on-start script, as `render_onstart` makes it; errors are those of the plan."""
    from rlbox.fixes.catalogue import load_target_with_fix_packages
    from rlbox.fixes.conditions import list_stack_versions
    from rlbox.fixes.render import select_and_render_fixes
    from rlbox.image.forms import render_onstart

    loaded = load_target_with_fix_packages(app.project, target_name)
    select_and_render_fixes(
        loaded.all_fixes, loaded.target, list_stack_versions(loaded.target, None)
    )  # for what they refuse
    folders = app.project.template_dirs()
    return loaded.target, render_onstart(
        loaded.target, folders, added_script, rlbox_upload_dir, ignore_stack_conflicts=ignore_stack_conflicts
    )


def _read_added_script(path: Path | None) -> str:
    """Return the text of the file of `--add`, empty without one; `SpecError` when it is no text."""
    try:
        return path.read_text("utf-8") if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            _("the file of --add cannot be read: {why}").format(why=error),
            where=str(path),
            next_step=_("name a file with shell text"),
        ) from error
