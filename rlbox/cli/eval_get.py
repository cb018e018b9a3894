"""`rlbox eval get`: bring results and checkpoints of a run to this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.completers import complete_run
from rlbox.cli.eval_judge import make_locks_error
from rlbox.cli.options import disk_options, dry_run, shared
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.result import EvaluationResult
    from rlbox.ssh.connection import RemoteShell
    from rlbox.ssh.download import DownloadDirectory
    from rlbox.ssh.files import RemoteFile


_PLAN_BYTES = 64 << 20
_NAMED = 8
"""Runs that are named where another was asked for, at most."""
_RECORD = ".fetched.json"


@dataclass(kw_only=True)
class ResultsDisk:
    """A data disk and the way to it; `disks` are its names there, `troubles` what could not be read."""

    shell: RemoteShell
    disk: str
    instance: int | None = None
    disks: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def home(self, folder: Path | None, name: str) -> DownloadDirectory:
        """Return where files come to: `folder`, the one used before for an instance, or one called `name`."""
        from rlbox.ssh.download import DownloadDirectory
        from rlbox.vast.instance import download_directory

        if self.instance is None:
            whole = (folder or Path(name)).absolute()
            return DownloadDirectory(whole / _RECORD, whole)
        home = download_directory(self.instance, folder.absolute() if folder else None)
        return home if home.was_used or folder else download_directory(self.instance, Path(name).absolute())

    def results(self, run: str) -> list[str]:
        """Return the folders of results below the disk: those that a run of this name has, or the one it is.

        Raises
        ------
        SpecError
            There is neither, or the run has none.
        """
        from rlbox.evaluation.files import find_result_directories, read_data_path, relative_to_disk

        names = self._ask(f"ls -1 {shlex.quote(self.disk)}/runs 2>/dev/null || true").splitlines()
        found = [name for name in names if name == run] or [name for name in names if name.startswith(run)]
        if len(found) != 1 or "/" in run:
            return [self._folder(run, names)]
        plan = self._plan(found[0])
        self.disks = [read_data_path(plan), self.disk]
        folders = find_result_directories(plan)
        if not folders:
            step = _("name the folder of its results below the data disk instead of the run")
            raise SpecError(
                _("run {found} judges no checkpoint").format(found=found[0]), where=self.disk, next_step=step
            )
        try:
            return [relative_to_disk(one, self.disks) for one in folders]
        except ValueError as error:
            raise SpecError(str(error), where=f"run {found[0]}") from error

    def lacking(self, home: DownloadDirectory, roots: Sequence[str]) -> list[RemoteFile]:
        """Return the files below the disk that are not here as they are there, without their sums."""
        from rlbox.ssh.files import list_files

        files, __ = list_files(self.shell, self.disk, roots)
        return home.find_missing(files)

    def bring(self, app: App, home: DownloadDirectory, roots: Sequence[str]) -> tuple[int, int]:
        """Bring the files of folders below the disk; return how many they are, and how many were not here."""
        from rlbox.amounts import size_text
        from rlbox.ssh.files import list_files, total_bytes
        from rlbox.system.progress import show_byte_progress

        files, troubles = list_files(self.shell, self.disk, roots)
        lacking = home.find_missing(files)
        brings = f"{len(lacking)} of {len(files)} files, {size_text(total_bytes(lacking))}"
        app.say(f"bringing {brings}, to {home.path}")
        summed, more = list_files(self.shell, self.disk, [file.path for file in lacking], with_sums=True)
        home.path.mkdir(parents=True, exist_ok=True)
        with show_byte_progress(app, "fetch", total_bytes(summed)) as tell:
            home.fetch(self.shell, self.disk, summed, tell)
        for trouble in (*troubles, *more):
            app.say(f"not brought: {trouble}")
            self.troubles.append(trouble)
        return len(files), len(summed)

    def _folder(self, run: str, names: Sequence[str]) -> str:
        from rlbox.evaluation.files import relative_to_disk

        self.disks = [self.disk]
        whole = run if run.startswith("/") else f"{self.disk}/{run}"
        there = self._ask(f"[ ! -d {shlex.quote(whole)} ] || echo there").strip()
        try:
            if not there:
                raise ValueError(_("there is no run {run!r}, nor a folder of results").format(run=run))
            return relative_to_disk(whole, self.disks)
        except ValueError as error:
            known = ", ".join(names[-_NAMED:])
            step = (
                _("choose one of: {known}").format(known=known)
                if known
                else _("name another data disk with --data DIR")
            )
            raise SpecError(str(error), where=self.disk, next_step=step) from error

    def _plan(self, run: str) -> dict[str, Any]:
        from rlbox.foreign import parse_json

        path = shlex.quote(f"{self.disk}/runs/{run}/plan.json")
        try:
            found = parse_json(self._ask(f"head -c {_PLAN_BYTES} {path}"))
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}

    def _ask(self, command: str) -> str:
        return self.shell.check_output(command, "the data disk cannot be looked at")


@contextlib.contextmanager
def disk_with_results(app: App, instance: int | None, target: str, data: str | None) -> Iterator[ResultsDisk]:
    """Yield the data disk of an instance, of the machine whose engine is reached over ssh, or of this machine."""
    from rlbox.engine.address import find_engine_url
    from rlbox.run.data_disk import open_existing_run_store
    from rlbox.ssh.connection import LocalShell, SshConnection, parse_ssh_url

    if instance is not None:
        from rlbox.cli.vast_instances import disk_of
        from rlbox.vast.api import find_own_instance
        from rlbox.vast.instance import ssh_address

        one = find_own_instance(instance)
        with SshConnection(ssh_address(one)) as connection:
            yield ResultsDisk(shell=connection, disk=disk_of(app, one), instance=instance)
    elif find_engine_url().startswith("ssh://"):
        with SshConnection(parse_ssh_url(find_engine_url())) as connection:
            yield ResultsDisk(shell=connection, disk=_disk_there(app, connection, target, data))
    else:
        yield ResultsDisk(shell=LocalShell(), disk=str(open_existing_run_store(app, target, data).data_dir))


def _disk_there(app: App, way: RemoteShell, target: str, data: str | None) -> str:
    from rlbox.target.target import load_target

    named = data or os.environ.get("RLBOX_DATA") or load_target(app.project, target).target.disk.host
    if named.startswith("~"):
        named = way.check_output("echo $HOME", "the data disk cannot be looked at").strip() + named[1:]
    if not named.startswith("/"):
        raise SpecError(
            _("on a remote engine the data disk is named by its whole path there"),
            where=named or "disk.host",
            next_step="--data /PATH/ON/THE/REMOTE/HOST",
        )
    return named


@click.command("get")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("--best", is_flag=True, help="Also the export of the best checkpoint.")
@click.option("--by", multiple=True, metavar="SUITE", help="Suite that decides which is best [the run's own choice].")
@click.option("--instance", type=int, metavar="ID", help="Instance of vast.ai that has them [the data disk].")
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder to fetch into [RUN, or the one used before for ID].",
)
@disk_options
@dry_run
@shared
def get(
    app: App,
    run: str,
    best: bool,
    by: tuple[str, ...],
    instance: int | None,
    folder: Path | None,
    target: str,
    data: str | None,
) -> int:
    """Fetch the results of RUN, a run or a folder of results on a data disk: that of this machine, or of another.

    A file counts as fetched once its sha256 is that of the file there; called again, it continues where it was cut
    off. The best export is the one that the run chose, and must have the weights that were judged. DIR then has what
    lies on the data disk under the same names.

    \b
    Examples:
      rlbox eval get sft-20260101 --best
      rlbox eval get sft-20260101 --best --instance 12345678 --to best
      rlbox eval get eval --best --by human-eval
    """
    from rlbox.system.files import require_writable_directory

    with disk_with_results(app, instance, target, data) as disk:
        where = disk.results(run)
        home = disk.home(folder, Path(run).name)
        with app.checking("folder"):
            require_writable_directory(home.path, "another with --to")
        if app.dry_run:
            return _planned(app, disk, home, where, best=best)
        files, brought = disk.bring(app, home, where)
        chosen: dict[str, Any] | None = None
        if best:
            result, model = _best(home, where, disk, by)
            more, new = disk.bring(app, home, [model])
            files, brought = files + more, brought + new
            chosen = {"name": result.name, "step": result.step, "model": str(_proven(result, home.path / model))}
    rows = [str(home.path / one) for one in where]
    told = {"run": run, "folder": str(home.path), "results": rows, "files": files, "brought": brought}
    lines = [f"results: {row}" for row in rows]
    lines += [f"best checkpoint: {result.name}, {home.path / model}"] if chosen else []
    app.result({**told, "best": chosen, "troubles": list(disk.troubles)}, "\n".join(lines))
    return 1 if disk.troubles else 0


def _planned(app: App, disk: ResultsDisk, home: DownloadDirectory, where: list[str], *, best: bool) -> int:
    from rlbox.amounts import size_text
    from rlbox.ssh.files import total_bytes

    files = disk.lacking(home, where)
    if best:
        app.not_checked("which export it is, the results say when they are here", "best export")
    lines = "\n".join(f"{size_text(file.size):>9}  {file.path}" for file in files)
    brings = f"{len(files)} files, {size_text(total_bytes(files))}"
    return app.planned({"files": [vars(file) for file in files]}, lines, f"bring {brings}, to {home.path}")


def _best(
    home: DownloadDirectory, where: list[str], disk: ResultsDisk, by: tuple[str, ...]
) -> tuple[EvaluationResult, str]:
    """Return the best of the results that are here, and its export below the data disk."""
    from rlbox.evaluation.files import (
        BEST_FILE,
        SUMMARY_FILE,
        parse_best,
        read_export_path,
        read_results,
        read_summary,
        relative_to_disk,
    )
    from rlbox.evaluation.lock import LocksDifferError
    from rlbox.evaluation.selection import build_rule, choose_checkpoint
    from rlbox.system.json_files import read_json_object

    chosen = next((folder for one in where if (folder := home.path / one).joinpath(BEST_FILE).is_file()), None)
    folder = home.path / where[0] if chosen is None or by else chosen
    try:
        if chosen is None or by:
            result = choose_checkpoint(read_results(folder), rule=build_rule(by)).result
            export = read_export_path(folder / result.name)
        else:
            name, export = parse_best(read_json_object(chosen / BEST_FILE))
            result = read_summary(chosen / Path(name).name / SUMMARY_FILE)
        return result, relative_to_disk(export, disk.disks)
    except LocksDifferError as error:
        raise make_locks_error(error, folder) from error
    except ValueError as error:
        raise SpecError(str(error), where=str(folder)) from error


def _proven(result: EvaluationResult, model: Path) -> Path:
    """Return the export that is here; `WorkFailed` where it is not what was judged."""
    from rlbox.evaluation.export import digest_export

    try:
        digests = digest_export(model)
    except OSError as error:
        raise WorkFailed(
            _("the export of {result} is not whole: {error}").format(result=result.name, error=error), where=str(model)
        ) from error
    if digests.weights != result.lock.subject.get("weights"):
        raise WorkFailed(
            _("the export of {result} has other weights than those that were judged").format(result=result.name),
            where=str(model),
            next_step=_("judge it where it is, and get it again: rlbox eval judge --help"),
        )
    return model
