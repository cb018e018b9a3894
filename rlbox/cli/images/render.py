"""`rlbox render`: write what follows from the specs."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, shared
from rlbox.cli.own_files import write_own
from rlbox.errors import WorkFailed
from rlbox.image.plan import ImagePlan
from rlbox.image.plans import image_plan


@click.command()
@click.argument("names", metavar="[TARGET]...", nargs=-1, shell_complete=complete_target)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff when a rendered file is stale.")
@click.option("--context", metavar="FOLDER", help="Also write the whole build context there, for plain docker build.")
@click.option("--hermetic", is_flag=True, help="With --context: carry every locked file, for a build without network.")
@dry_run
@shared
def verb(app: App, names: tuple[str, ...], check: bool, context: str | None, hermetic: bool) -> int:
    """Write the Dockerfile of each TARGET (all of them by default) into the project folder.

    \b
    Examples:
      rlbox render local
      rlbox render --check
    """
    if context and (len(names) != 1 or check):
        raise click.UsageError("--context takes one target, and no --check")
    if hermetic and not context:
        raise click.UsageError("--hermetic says what --context carries")
    plans = [image_plan(app.project, name) for name in (names or tuple(app.project.targets()))]
    stale = {name: text for plan in plans for name, text in plan.rendered.items() if _differs(app, name, text)}
    if check and stale:
        raise WorkFailed(_diff(app, stale), next_step=f"rlbox render {' '.join(names)}".rstrip())
    if not (check or app.dry_run):
        for name, text in stale.items():
            write_own(app, name, text)
    if context:
        _write_context(app, plans[0], Path(context), hermetic=hermetic)
    files = sorted({name for plan in plans for name in plan.rendered})
    data = {"targets": [plan.target for plan in plans], "files": files, "changed": sorted(stale)}
    text = "\n".join(f"{name}  {_state(name in stale, check or app.dry_run)}" for name in files)
    if app.dry_run:
        return app.planned(data, text, _would(sorted(stale), context))
    app.result(data, text)
    return 0


def _state(stale: bool, only_look: bool) -> str:
    return ("stale" if only_look else "written") if stale else "unchanged"


def _would(stale: list[str], context: str | None) -> str:
    names, folder = ", ".join(stale), (context or "")
    if context and stale:
        return f"write {names}, and the build context to {folder}"
    if context:
        return f"write the build context to {folder}"
    return f"write {names}" if stale else "write nothing"


def _differs(app: App, name: str, text: str) -> bool:
    try:
        return (app.project.folder / name).read_bytes() != text.encode()
    except OSError:
        return True


def _write_context(app: App, plan: ImagePlan, folder: Path, *, hermetic: bool) -> None:
    """Write the build context; a dry run checks what could be in its way."""
    from rlbox.image.buildkit import BuildWish
    from rlbox.image.context import check_context_folder
    from rlbox.image.inputs import BuildInputs
    from rlbox.system.files import require_writable_directory

    wish = BuildWish(hermetic=hermetic)
    with app.checking("folder"):
        require_writable_directory(folder, "another with --context")
        check_context_folder(folder)
    if not app.dry_run:
        BuildInputs(app, plan, wish).write(folder)
        return
    with app.checking("lock"):
        BuildInputs(app, plan, wish).look()


def _diff(app: App, stale: dict[str, str]) -> str:
    import difflib

    lines: list[str] = []
    for name, text in sorted(stale.items()):
        path = app.project.folder / name
        old = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
        lines += difflib.unified_diff(old, text.splitlines(), name, f"{name} (rendered now)", lineterm="")
    return "rendered files are stale\n" + "\n".join(lines)
