"""`rlbox vast fetch`: bring runs and whole checkpoints of an instance home, each file proven."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared
from rlbox.printable import isolated


@click.command()
@click.argument("number", metavar="ID", type=int)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder to fetch into [vast-ID, or the one used before].",
)
@click.option("--only", is_flag=True, help="Only the given PATH: the best checkpoint, the results.")
@dry_run
@shared
def fetch(app: App, number: int, paths: tuple[str, ...], folder: Path | None, only: bool) -> int:
    """Fetch every run and every complete checkpoint of instance ID, and PATH on its data disk as well.

    A file counts as fetched once its sha256 is that of the instance. Called again, it fetches what changed and
    continues where it was cut off; DIR then is a data disk: `rlbox runs --data DIR`. Links are not fetched.

    \b
    Example:
      rlbox vast fetch --help
    """
    from rlbox.amounts import size_text
    from rlbox.cli.rented.vast_instances import disk_of
    from rlbox.files.act.output import check_output_folder
    from rlbox.files.act.progress import bytes_view
    from rlbox.ssh.connection import Connection
    from rlbox.ssh.files import list_files
    from rlbox.ssh.listing import total_bytes
    from rlbox.vast.act.account import read_own
    from rlbox.vast.act.instance import address_of, home_of, wanted_files
    from rlbox.vast.stay import below

    if only and not paths:
        raise click.UsageError("--only brings what is named: add a PATH on the instance's data disk.")
    one = read_own(number)
    disk = disk_of(app, one)
    more = [below(path, disk) for path in paths]
    home = home_of(number, folder.absolute() if folder else None)
    if not home.known and folder is None:
        home = home_of(number, Path(f"vast-{number}").absolute())
    with app.checking("folder"):
        check_output_folder(home.folder, "another with --to")
    with Connection(address_of(one)) as connection:
        files, troubles = list_files(connection, disk, more) if only else wanted_files(connection, disk, more)
        lacking = home.lacks(files)
        brings = f"{len(lacking)} of {len(files)} files, {size_text(total_bytes(lacking))}"
        if app.dry_run:
            lines = "\n".join(f"{size_text(file.size):>9}  {isolated(file.path)}" for file in lacking)
            return app.planned({"files": [vars(file) for file in lacking]}, lines, f"bring {brings}, to {home.folder}")
        app.say(f"bringing {brings}, to {home.folder}")
        summed, more_troubles = list_files(connection, disk, [file.path for file in lacking], sums=True)
        with bytes_view(app, "fetch", total_bytes(summed)) as tell:
            home.bring(connection, disk, summed, tell)
    for trouble in (*troubles, *more_troubles):
        app.say(f"not brought: {trouble}")
    data = {"instance": number, "folder": str(home.folder), "files": len(files), "brought": len(summed)}
    app.result({**data, "troubles": [*troubles, *more_troubles]}, f"{home.folder}  {brings}, proven")
    app.say(f"next: rlbox runs --data {home.folder}; rlbox vast destroy {number}")
    return 1 if troubles or more_troubles else 0
