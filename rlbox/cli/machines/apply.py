"""`rlbox apply`: bring this machine to a target's lock where no image can be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import complete_target, dry_run, shared, sources_option
from rlbox.image.act.plans import image_plan

if TYPE_CHECKING:
    from pathlib import Path

    from rlbox.place.act.apply import Applied
    from rlbox.place.act.bring import ApplyWish, Prepared
    from rlbox.place.changes import ApplyPlan
    from rlbox.place.layout import Layout


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--check", is_flag=True, help="Only compare; exit code 1 when something differs.")
@click.option("--remove", is_flag=True, help="Lay everything back as it was.")
@click.option("--prefix", metavar="DIR", help="Below DIR, and nowhere else [without root: a folder of rlbox's cache].")
@click.option("--offline", is_flag=True, help="Take every file from the store.")
@click.option("--no-packages", "packages", is_flag=True, flag_value=False, default=True, help="Leave apt alone.")
@click.option("--data", metavar="DIR", help="Directory that is the data disk [RLBOX_DATA].")
@sources_option
@dry_run
@shared
def verb(
    app: App,
    name: str,
    check: bool,
    remove: bool,
    prefix: str | None,
    offline: bool,
    packages: bool,
    data: str | None,
    sources: str,
) -> int:
    """Bring this machine, which has no Docker, to the lock of TARGET: Python stack, fixes, checks.

    \b
    Examples:
      rlbox apply local --dry-run
      rlbox apply local --prefix /root/autodl-tmp/rlbox --dry-run
    """
    from rlbox.place.act.bring import ApplyWish

    if check and remove:
        raise click.UsageError("--check and --remove exclude each other.")
    layout = _layout(app, name, prefix, data)
    if remove:
        return _remove(app, name, layout)
    wish = ApplyWish(sources=sources, offline=offline, packages=packages)
    return _apply(app, name, layout, wish, check=check)


def _layout(app: App, name: str, prefix: str | None, data: str | None) -> Layout:
    from rlbox.engine.act.data_disk import data_folder
    from rlbox.place.act.bring import own_prefix
    from rlbox.place.act.facts import read_record
    from rlbox.place.layout import Layout, check_prefix

    folder = check_prefix(str(data_folder(image_plan(app.project, name).container, data)), "--data")
    if prefix is None:
        prefix = "" if os.geteuid() == 0 else own_prefix(name)
    layout = Layout(prefix=check_prefix(prefix.rstrip("/")), data=folder)
    record = read_record(layout)
    return Layout(prefix=layout.prefix, data=folder, venv=record.venv if record else "")


def _apply(app: App, name: str, layout: Layout, wish: ApplyWish, *, check: bool) -> int:
    import dataclasses

    from rlbox.engine.act.data_disk import check_disk
    from rlbox.place.act.apply import NOTHING
    from rlbox.place.act.bring import busy, carry_out, look, prepare, with_room

    image = image_plan(app.project, name)
    prepared = prepare(app, image, layout)
    roomy = with_room(prepared, layout)
    if roomy != layout:
        app.say(f"{layout.at('/opt')} is on a small disk: the environment goes to {roomy.venv}")
        prepared = prepare(app, image, roomy)
    if check or app.dry_run:
        return _compare(app, prepared, look(prepared, wish.why_no_packages), check=check)
    check_disk(_path(layout.data), 0.0, create=image.container.create)
    with busy(layout):
        plan, done = look(prepared, wish.why_no_packages), NOTHING
        if "packages" in plan.kinds:  # they decide which fixes are there whole
            only = tuple(step for step in plan.steps if step.kind == "packages")
            done = carry_out(app, prepared, dataclasses.replace(plan, steps=only), wish)
            prepared = prepare(app, image, roomy)
            plan = look(prepared, done.left[0].reason if done.left else "")
        if plan.steps:
            done = done.then(carry_out(app, prepared, plan, wish))
    return _tell(app, prepared, plan, done)


def _path(text: str) -> Path:
    from pathlib import Path

    return Path(text)


def _compare(app: App, prepared: Prepared, plan: ApplyPlan, *, check: bool) -> int:
    """Say what differs; a machine that is at the lock is at it only if its checks pass."""
    from rlbox.place.act.apply import NOTHING
    from rlbox.place.view import left_lines, left_rows, plan_lines, step_rows

    if check and not plan.steps:
        return _tell(app, prepared, plan, NOTHING)
    layout = prepared.wanted.layout
    state = "differs" if plan.steps else "unchanged"
    lines = [f"{prepared.wanted.target}  {state}: {len(plan.steps)} changes at {layout.prefix or '/'}"]
    lines += [*plan_lines(plan, differences=app.dry_run), *left_lines(plan.left)]
    data = {"target": prepared.wanted.target, "prefix": layout.prefix, "state": state}
    app.result({**data, "steps": step_rows(plan.steps), "left": left_rows(plan.left)}, "\n".join(lines))
    return 1 if check and plan.steps else 0


def _tell(app: App, prepared: Prepared, plan: ApplyPlan, done: Applied) -> int:
    from rlbox.place.act.bring import check_place
    from rlbox.place.view import finding_lines, left_lines, left_rows, step_rows

    steps, left = done.steps, plan.left
    layout, state = prepared.wanted.layout, "applied" if steps else "unchanged"
    count, findings = check_place(layout)
    partial = {row.origin for row in left}
    wrong = [row for row in findings if row.level == "error" and row.id not in partial]
    changes = f", {len(steps)} changes" if steps else ""
    lines = [f"{prepared.wanted.target}  {state}{changes}: {count - len(findings)} of {count} checks hold"]
    lines += [f"kept        {path}" for path in done.kept]
    lines += [*left_lines(left), *finding_lines(findings, left)]
    app.result(
        {
            "target": prepared.wanted.target,
            "prefix": layout.prefix,
            "python": layout.python,
            "state": state,
            "steps": step_rows(steps),
            "kept": list(done.kept),
            "left": left_rows(left),
            "checks": {"count": count, "failed": [row.as_json() for row in findings]},
        },
        "\n".join(lines),
    )
    app.say(f"next: . {layout.own}/libexec/init.sh, or rlbox run JOB --place here")
    return 1 if wrong else 0


def _remove(app: App, name: str, layout: Layout) -> int:
    from rlbox.errors import NodeError
    from rlbox.place.act.apply import lay_back
    from rlbox.place.act.bring import busy, forget_place
    from rlbox.place.act.facts import read_record

    record = read_record(layout)
    if record and record.target != name:
        raise NodeError(
            f"what was laid here is target {record.target}",
            where=layout.record,
            next_step=f"rlbox apply {record.target} --remove",
        )
    paths = [*record.laid, *record.parts, *([layout.at("/opt/venv")] if record.environment else [])] if record else []
    state, notes = "laid" if record else "unchanged", tuple[str, ...]()
    if record and not app.dry_run:
        with busy(layout):
            notes = lay_back(layout, lambda path: app.say(path) if app.verbosity > 0 else None)
        forget_place(name, layout)
        state = "removed"
    shown = [f"remove      {path}" for path in paths] if app.dry_run else []
    lines = [f"{name}  {state}: {len(paths)} things laid back", *shown, *notes]
    data = {"target": name, "prefix": layout.prefix, "state": state, "paths": paths, "notes": list(notes)}
    app.result(data, "\n".join(lines))
    return 0
