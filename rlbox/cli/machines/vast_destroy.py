"""`rlbox vast destroy`: end instances that rlbox created, and what they cost."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.machines.vast_create import confirm
from rlbox.cli.options import dry_run, shared


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def destroy(app: App, ids: tuple[int, ...], yes: bool) -> None:
    """Destroy instances with everything on their disks; only those that rlbox created, told by their labels.

    Fetch checkpoints and results first: nothing of an instance is left afterwards.

    \b
    Example:
      rlbox vast destroy --help
    """
    from rlbox.errors import WorkFailed
    from rlbox.vast.act.account import destroy_instance, list_instances
    from rlbox.vast.request import check_destroy

    chosen = check_destroy(list_instances(), tuple(dict.fromkeys(ids)))
    lines = [f"{one.id}  {one.label}  {one.status or 'created'}  ${one.price:.3f} an hour" for one in chosen]
    data = {"instances": [one.id for one in chosen], "destroyed": not app.dry_run}
    if app.dry_run:
        app.result(data, "\n".join(f"would destroy {line}" for line in lines))
        return
    for line in lines:
        app.say(line)
    noun = "instance" if len(chosen) == 1 else "instances"
    confirm(app, yes, f"destroy {len(chosen)} {noun} with everything on the disk")
    for one in chosen:
        destroy_instance(one.id)
    left = sorted(set(list_instances()) & {one.id for one in chosen})
    if left:
        raise WorkFailed(
            f"vast.ai says that {', '.join(map(str, left))} were destroyed, and still lists them",
            next_step="look again in a minute: vastai show instances",
        )
    app.result(data, "\n".join(f"{one.id}  destroyed" for one in chosen))
