"""`rlbox eval get`: the results of a run, and the best export, brought here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.completers import complete_run
from rlbox.cli.options import disk_options, dry_run, shared
from rlbox.cli.scores.eval_asked import locks_differ
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.cli.scores.results_disk import ResultsDisk
    from rlbox.evaluation.result import EvaluationResult
    from rlbox.ssh.download import DownloadDirectory


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
    from rlbox.cli.scores.results_disk import disk_with_results
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
    from rlbox.evaluation.result import LocksDifferError
    from rlbox.evaluation.result_files import (
        BEST,
        SUMMARY,
        parse_best,
        read_export_path,
        read_results,
        read_summary,
        relative_to_disk,
    )
    from rlbox.evaluation.selection import build_rule, choose_checkpoint
    from rlbox.system.json_files import read_json_object

    chosen = next((folder for one in where if (folder := home.path / one).joinpath(BEST).is_file()), None)
    folder = home.path / where[0] if chosen is None or by else chosen
    try:
        if chosen is None or by:
            result = choose_checkpoint(read_results(folder), rule=build_rule(by)).best
            export = read_export_path(folder / result.name)
        else:
            name, export = parse_best(read_json_object(chosen / BEST))
            result = read_summary(chosen / Path(name).name / SUMMARY)
        return result, relative_to_disk(export, disk.disks)
    except LocksDifferError as error:
        raise locks_differ(error, folder) from error
    except ValueError as error:
        raise SpecError(str(error), where=str(folder)) from error


def _proven(result: EvaluationResult, model: Path) -> Path:
    """Return the export that is here; `WorkFailed` where it is not what was judged."""
    from rlbox.evaluation.export import digest_export

    try:
        subject, __ = digest_export(model)
    except OSError as error:
        raise WorkFailed(
            _("the export of {result} is not whole: {error}").format(result=result.name, error=error), where=str(model)
        ) from error
    if subject["weights"] != result.lock.subject.get("weights"):
        raise WorkFailed(
            _("the export of {result} has other weights than those that were judged").format(result=result.name),
            where=str(model),
            next_step=_("judge it where it is, and get it again: rlbox eval judge --help"),
        )
    return model
