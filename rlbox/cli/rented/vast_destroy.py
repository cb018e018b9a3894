"""`rlbox vast destroy`: end instances that rlbox created, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.cli.asked import confirm
from rlbox.cli.options import dry_run, shared

if TYPE_CHECKING:
    from rlbox.vast.request import Instance


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=int)
@click.option("--unfetched", is_flag=True, help="Destroy even if runs or checkpoints have not been fetched.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@shared
def destroy(app: App, ids: tuple[int, ...], unfetched: bool, yes: bool) -> int:
    """Destroy instances with everything on their disks; only those that rlbox created, told by their labels.

    Refused while any run or complete checkpoint on it has not been fetched: `vast fetch` first.

    \b
    Example:
      rlbox vast destroy --help
    """
    from rlbox.vast.account import destroy_instance, list_instances
    from rlbox.vast.request import own_instances

    chosen = own_instances(list_instances(), tuple(dict.fromkeys(ids)))
    for one in chosen if not unfetched else ():
        with app.checking("what is on the disk"):
            _require_fetched(app, one)
    lines = [f"{one.id}  {one.label}  {one.status or 'created'}  ${one.price:.3f} an hour" for one in chosen]
    data = {"instances": [one.id for one in chosen], "destroyed": not app.dry_run}
    count = counted(len(chosen), "instance", "instances")
    if app.dry_run:
        return app.planned(data, "\n".join(lines), f"destroy {count}")
    for line in lines:
        app.say(line)
    confirm(app, yes, f"destroy {count} with everything on the disk")
    for one in chosen:
        destroy_instance(one.id)
    _require_gone(chosen)
    app.result(data, "\n".join(f"{one.id}  destroyed" for one in chosen))
    return 0


def _require_fetched(app: App, one: Instance) -> None:
    """Raise `NodeError` unless all that should come home of an instance is here."""
    from rlbox.amounts import size_text
    from rlbox.cli.rented.vast_instances import disk_of
    from rlbox.errors import NodeError
    from rlbox.ssh.connection import SshConnection
    from rlbox.ssh.files import total_bytes
    from rlbox.vast.instance import address_of, home_of, wanted_files

    step = f"rlbox vast fetch {one.id}, or --unfetched to lose it"
    if one.status != "running":
        raise NodeError(
            f"instance {one.id} is {one.status or 'being made'}: what is on its disk cannot be checked",
            next_step=f"rlbox vast start {one.id}, {step}",
        )
    with SshConnection(address_of(one)) as connection:
        files, _ = wanted_files(connection, disk_of(app, one))
    if lacking := home_of(one.id).find_missing(files):
        shown = ", ".join(file.path for file in lacking[:3]) + (" …" if len(lacking) > 3 else "")
        raise NodeError(
            f"instance {one.id} has {len(lacking)} files ({size_text(total_bytes(lacking))}) not at home: {shown}",
            next_step=step,
        )


def _require_gone(chosen: Sequence[Instance]) -> None:
    from rlbox.errors import WorkFailed
    from rlbox.vast.account import list_instances

    if left := sorted(set(list_instances()) & {one.id for one in chosen}):
        raise WorkFailed(
            f"vast.ai says that {', '.join(map(str, left))} were destroyed, and still lists them",
            next_step="look again in a minute: rlbox vast ls",
        )
