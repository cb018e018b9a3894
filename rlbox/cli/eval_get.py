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
from rlbox.cli.options import disk_options, dry_run_option, shared_options
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.result import EvaluationResult
    from rlbox.ssh.connection import RemoteShell
    from rlbox.ssh.download import DownloadDirectory
    from rlbox.ssh.files import RemoteFile


_MAX_PLAN_BYTES = 64 << 20
_MAX_NAMED = 8
"""Runs that are named where another was asked for, at most."""
_RECORD_FILE = ".fetched.json"


@dataclass(kw_only=True)
class ResultsDisk:
    """A data disk and a shell that reaches it.

    `aliases` are paths of the disk as runs see it, `problems` what could not be read.
    """

    shell: RemoteShell
    data_dir: str
    instance: int | None = None
    aliases: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def choose_download_directory(self, folder: Path | None, name: str) -> DownloadDirectory:
        """Return where files come to: `folder`, the one used before for an instance, or one called `name`."""
        from rlbox.ssh.download import DownloadDirectory
        from rlbox.vast.instance import download_directory

        if self.instance is None:
            whole = (folder or Path(name)).absolute()
            return DownloadDirectory(whole / _RECORD_FILE, whole)
        target_dir = download_directory(self.instance, folder.absolute() if folder else None)
        return target_dir if target_dir.was_used or folder else download_directory(self.instance, Path(name).absolute())

    def find_results(self, run: str) -> list[str]:
        """Return the folders of results below the disk: those that a run of this name has, or the one it is.

        Raises
        ------
        SpecError
            There is neither, or the run has none.
        """
        from rlbox.evaluation.files import find_result_directories, get_data_disk_path, make_relative_to_disk

        names = self._run(f"ls -1 {shlex.quote(self.data_dir)}/runs 2>/dev/null || true").splitlines()
        found = [name for name in names if name == run] or [name for name in names if name.startswith(run)]
        if len(found) != 1 or "/" in run:
            return [self._find_directory(run, names)]
        plan = self._read_plan(found[0])
        self.aliases = [get_data_disk_path(plan), self.data_dir]
        folders = find_result_directories(plan)
        if not folders:
            step = _("name the folder of its results below the data disk instead of the run")
            raise SpecError(
                _("run {found} judges no checkpoint").format(found=found[0]), where=self.data_dir, next_step=step
            )
        try:
            return [make_relative_to_disk(one, self.aliases) for one in folders]
        except ValueError as error:
            raise SpecError(str(error), where=f"run {found[0]}") from error

    def list_missing(self, target_dir: DownloadDirectory, roots: Sequence[str]) -> list[RemoteFile]:
        """Return the files below the disk that are not here as they are there, without their sums."""
        from rlbox.ssh.files import list_files

        files, __ = list_files(self.shell, self.data_dir, roots)
        return target_dir.find_missing(files)

    def download(self, app: App, target_dir: DownloadDirectory, roots: Sequence[str]) -> tuple[int, int]:
        """Bring the files of folders below the disk; return how many they are, and how many were not here."""
        from rlbox.amounts import size_text
        from rlbox.ssh.files import list_files, total_bytes
        from rlbox.system.progress import show_byte_progress

        files, troubles = list_files(self.shell, self.data_dir, roots)
        missing = target_dir.find_missing(files)
        brings = f"{len(missing)} of {len(files)} files, {size_text(total_bytes(missing))}"
        app.say(f"bringing {brings}, to {target_dir.path}")
        summed, more = list_files(self.shell, self.data_dir, [file.path for file in missing], with_sums=True)
        target_dir.path.mkdir(parents=True, exist_ok=True)
        with show_byte_progress(app, "fetch", total_bytes(summed)) as tell:
            target_dir.fetch(self.shell, self.data_dir, summed, tell)
        for trouble in (*troubles, *more):
            app.say(f"not brought: {trouble}")
            self.problems.append(trouble)
        return len(files), len(summed)

    def _find_directory(self, run: str, names: Sequence[str]) -> str:
        from rlbox.evaluation.files import make_relative_to_disk

        self.aliases = [self.data_dir]
        whole = run if run.startswith("/") else f"{self.data_dir}/{run}"
        there = self._run(f"[ ! -d {shlex.quote(whole)} ] || echo there").strip()
        try:
            if not there:
                raise ValueError(_("there is no run {run!r}, nor a folder of results").format(run=run))
            return make_relative_to_disk(whole, self.aliases)
        except ValueError as error:
            known = ", ".join(names[-_MAX_NAMED:])
            step = (
                _("choose one of: {known}").format(known=known)
                if known
                else _("name another data disk with --data DIR")
            )
            raise SpecError(str(error), where=self.data_dir, next_step=step) from error

    def _read_plan(self, run: str) -> dict[str, Any]:
        from rlbox.foreign import parse_json

        path = shlex.quote(f"{self.data_dir}/runs/{run}/plan.json")
        try:
            found = parse_json(self._run(f"head -c {_MAX_PLAN_BYTES} {path}"))
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}

    def _run(self, command: str) -> str:
        return self.shell.check_output(command, "the data disk cannot be looked at")


@contextlib.contextmanager
def open_results_disk(app: App, instance: int | None, target: str, data: str | None) -> Iterator[ResultsDisk]:
    """Yield the data disk of an instance, of the machine whose engine is reached over ssh, or of this machine."""
    from rlbox.engine.address import find_engine_url
    from rlbox.run.data_disk import open_existing_run_store
    from rlbox.ssh.connection import LocalShell, SshConnection, parse_ssh_url

    if instance is not None:
        from rlbox.cli.vast_instances import find_instance_disk
        from rlbox.vast.api import find_own_instance
        from rlbox.vast.instance import ssh_address

        one = find_own_instance(instance)
        with SshConnection(ssh_address(one)) as connection:
            yield ResultsDisk(shell=connection, data_dir=find_instance_disk(app, one), instance=instance)
    elif find_engine_url().startswith("ssh://"):
        with SshConnection(parse_ssh_url(find_engine_url())) as connection:
            yield ResultsDisk(shell=connection, data_dir=_find_remote_data_dir(app, connection, target, data))
    else:
        yield ResultsDisk(shell=LocalShell(), data_dir=str(open_existing_run_store(app, target, data).data_dir))


def _find_remote_data_dir(app: App, way: RemoteShell, target: str, data: str | None) -> str:
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
@dry_run_option
@shared_options
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

    with open_results_disk(app, instance, target, data) as disk:
        where = disk.find_results(run)
        target_dir = disk.choose_download_directory(folder, Path(run).name)
        with app.checking("folder"):
            require_writable_directory(target_dir.path, "another with --to")
        if app.dry_run:
            return _show_plan(app, disk, target_dir, where, best=best)
        files, brought = disk.download(app, target_dir, where)
        chosen: dict[str, Any] | None = None
        if best:
            result, model = _find_best(target_dir, where, disk, by)
            more, new = disk.download(app, target_dir, [model])
            files, brought = files + more, brought + new
            chosen = {
                "name": result.name,
                "step": result.step,
                "model": str(_require_judged_weights(result, target_dir.path / model)),
            }
    rows = [str(target_dir.path / one) for one in where]
    told = {"run": run, "folder": str(target_dir.path), "results": rows, "files": files, "brought": brought}
    lines = [f"results: {row}" for row in rows]
    lines += [f"best checkpoint: {result.name}, {target_dir.path / model}"] if chosen else []
    app.result({**told, "best": chosen, "troubles": list(disk.problems)}, "\n".join(lines))
    return 1 if disk.problems else 0


def _show_plan(app: App, disk: ResultsDisk, target_dir: DownloadDirectory, where: list[str], *, best: bool) -> int:
    from rlbox.amounts import size_text
    from rlbox.ssh.files import total_bytes

    files = disk.list_missing(target_dir, where)
    if best:
        app.not_checked("which export it is, the results say when they are here", "best export")
    lines = "\n".join(f"{size_text(file.size):>9}  {file.path}" for file in files)
    brings = f"{len(files)} files, {size_text(total_bytes(files))}"
    return app.planned({"files": [vars(file) for file in files]}, lines, f"bring {brings}, to {target_dir.path}")


def _find_best(
    target_dir: DownloadDirectory, where: list[str], disk: ResultsDisk, by: tuple[str, ...]
) -> tuple[EvaluationResult, str]:
    """Return the best of the results that are here, and its export below the data disk."""
    from rlbox.evaluation.files import (
        BEST_FILE,
        SUMMARY_FILE,
        make_relative_to_disk,
        parse_best,
        read_result,
        read_result_export_path,
        read_results,
    )
    from rlbox.evaluation.lock import LocksDifferError
    from rlbox.evaluation.selection import build_selection_rule, choose_checkpoint
    from rlbox.system.json_files import read_json_object

    chosen = next((folder for one in where if (folder := target_dir.path / one).joinpath(BEST_FILE).is_file()), None)
    folder = target_dir.path / where[0] if chosen is None or by else chosen
    try:
        if chosen is None or by:
            result = choose_checkpoint(read_results(folder), rule=build_selection_rule(by)).result
            export = read_result_export_path(folder / result.name)
        else:
            name, export = parse_best(read_json_object(chosen / BEST_FILE))
            result = read_result(chosen / Path(name).name / SUMMARY_FILE)
        return result, make_relative_to_disk(export, disk.aliases)
    except LocksDifferError as error:
        raise make_locks_error(error, folder) from error
    except ValueError as error:
        raise SpecError(str(error), where=str(folder)) from error


def _require_judged_weights(result: EvaluationResult, model: Path) -> Path:
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
