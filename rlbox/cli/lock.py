"""`rlbox lock`: pin every package of a target."""

from __future__ import annotations

import click

from rlbox.cli.app import App, own_requirements
from rlbox.cli.options import complete_target, dry_run, shared
from rlbox.errors import WorkFailed


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when the lock does not fit the spec.")
@dry_run
@shared
def verb(app: App, name: str, check: bool) -> None:
    """Resolve the packages of TARGET and write them with their sha256 into its lock.json.

    \b
    Examples:
      rlbox lock local
      rlbox lock local --check
    """
    if check:
        plan = app.image_plan(name)
        if plan.lock != "current":
            raise WorkFailed(f"the lock of target {name} is {plan.lock}", next_step=f"rlbox lock {name}")
        app.result({"target": name, "lock": plan.lock}, f"{name}  lock is current")
        return
    _lock(app, name)


def _lock(app: App, name: str) -> None:
    from rlbox.act.folders import write_if_changed
    from rlbox.act.site import probe_site
    from rlbox.act.uv import resolve_lock
    from rlbox.plan.image import torch_groups
    from rlbox.plan.sources import plan_sources
    from rlbox.spec.load import load_target

    target = load_target(app.project, name).target
    site = probe_site()
    lock = resolve_lock(target, own_requirements(), plan_sources(torch_groups(target), site), site.ca_bundle)
    path = app.project.lock_file(name)
    changed = False if app.dry_run else write_if_changed(path, lock.text())
    counts = {group.name: len(group.packages) for group in (*lock.groups, lock.runtime)}
    lines = [f"{group:<12} {count:>4} packages" for group, count in counts.items()]
    state = "not written (--dry-run)" if app.dry_run else "written" if changed else "unchanged"
    app.result({"target": name, "groups": counts, "changed": changed}, "\n".join([*lines, f"{path.name} {state}"]))
    app.say(f"next: rlbox build {name}")
