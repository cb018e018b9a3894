"""`rlbox vast fetch`: bring runs and whole checkpoints of an instance home, each file proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared

if TYPE_CHECKING:
    from rlbox.ssh.connection import SshConnection
    from rlbox.ssh.download import DownloadDirectory
    from rlbox.ssh.files import RemoteFile


@dataclass(frozen=True, kw_only=True)
class FetchResult:
    """What was fetched: the files that count as fetched now, how many were brought, what could not be."""

    files: int
    brought: int
    summary: str
    troubles: tuple[str, ...]


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
    from rlbox.cli.rented.vast_instances import disk_of
    from rlbox.ssh.connection import SshConnection
    from rlbox.ssh.files import list_files
    from rlbox.system.files import require_writable_directory
    from rlbox.vast.account import read_own
    from rlbox.vast.instance import address_of, wanted_files
    from rlbox.vast.stay import below

    if only and not paths:
        raise click.UsageError("--only brings what is named: add a PATH on the instance's data disk.")
    one = read_own(number)
    disk = disk_of(app, one)
    more = [below(path, disk) for path in paths]
    home = choose_home(number, folder)
    with app.checking("folder"):
        require_writable_directory(home.path, "another with --to")
    with SshConnection(address_of(one)) as connection:
        files, troubles = list_files(connection, disk, more) if only else wanted_files(connection, disk, more)
        if app.dry_run:
            return _would_fetch(app, home, files)
        done = fetch_files(app, connection, disk, home, files, troubles)
    data = {"instance": number, "folder": str(home.path), "files": done.files, "brought": done.brought}
    app.result({**data, "troubles": list(done.troubles)}, f"{home.path}  {done.summary}, proven")
    app.say(f"next: rlbox runs --data {home.path}; rlbox vast destroy {number}")
    return 1 if done.troubles else 0


def choose_home(number: int, folder: Path | None = None) -> DownloadDirectory:
    """Return where what is fetched of an instance goes: the folder that is named, else the one used before."""
    from rlbox.vast.instance import home_of

    home = home_of(number, folder.absolute() if folder else None)
    if not home.was_used and folder is None:
        home = home_of(number, Path(f"vast-{number}").absolute())
    return home


def _would_fetch(app: App, home: DownloadDirectory, files: Sequence[RemoteFile]) -> int:
    from rlbox.amounts import size_text

    lacking = home.find_missing(files)
    lines = "\n".join(f"{size_text(file.size):>9}  {file.path}" for file in lacking)
    would = f"bring {_summary(lacking, files)}, to {home.path}"
    return app.planned({"files": [vars(file) for file in lacking]}, lines, would)


def fetch_files(
    app: App,
    connection: SshConnection,
    disk: str,
    home: DownloadDirectory,
    files: Sequence[RemoteFile],
    troubles: Sequence[str],
) -> FetchResult:
    """Bring home what is not there yet of the listed files; say what cannot be brought."""
    from rlbox.ssh.files import list_files, total_bytes
    from rlbox.system.progress import show_byte_progress

    lacking = home.find_missing(files)
    summary = _summary(lacking, files)
    app.say(f"bringing {summary}, to {home.path}")
    summed, more_troubles = list_files(connection, disk, [file.path for file in lacking], with_sums=True)
    with show_byte_progress(app, "fetch", total_bytes(summed)) as tell:
        home.fetch(connection, disk, summed, tell)
    for trouble in (*troubles, *more_troubles):
        app.say(f"not brought: {trouble}")
    return FetchResult(files=len(files), brought=len(summed), summary=summary, troubles=(*troubles, *more_troubles))


def _summary(lacking: Sequence[RemoteFile], files: Sequence[RemoteFile]) -> str:
    from rlbox.amounts import size_text
    from rlbox.ssh.files import total_bytes

    return f"{len(lacking)} of {len(files)} files, {size_text(total_bytes(lacking))}"
