"""`rlbox report`: a run as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import disk_options, dry_run, open_option, shared, write_page
from rlbox.errors import SpecError
from rlbox.run.data_disk import bring_up_to_date, known_disk, run_masks

POINTS = 400


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.argument("other", metavar="[OTHER]", required=False, shell_complete=complete_run)
@click.option("--out", metavar="FILE", help="File to write, - for standard output [RUN.html here].")
@click.option("--scores", is_flag=True, help="Write the page of its checkpoints' scores, too, and link to it.")
@open_option
@disk_options
@dry_run
@shared
def verb(
    app: App,
    name: str | None,
    other: str | None,
    out: str | None,
    scores: bool,
    opened: str,
    target: str,
    data: str | None,
) -> int:
    """Write what RUN did as one HTML file that needs nothing else: the latest run by default, or a run's folder.

    With OTHER, the differences are shown as well, and the metrics of both in one chart. With --scores a second file has
    what each checkpoint answered to each problem, as `rlbox eval report` writes it.

    \b
    Examples:
      rlbox report
      rlbox report smoke-20260101 --out smoke.html --lang zh
      rlbox report smoke-20260102 smoke-20260101
      rlbox report sft-20260101 --scores
    """
    from rlbox.report.html import render_report
    from rlbox.report.read import load_run_record
    from rlbox.system.clock import utc_now

    folder = _run_folder(app, name, target, data)
    record = load_run_record(folder, run_masks(app, folder), points=POINTS)
    before = _run_folder(app, other, target, data) if other else None
    if before and os.path.realpath(before) == os.path.realpath(folder):
        raise SpecError(
            f"both names are of run {folder.name}, which does not differ from itself",
            where=f"{name} {other}",
            next_step="name another run as OTHER: rlbox runs",
        )
    beside = load_run_record(before, run_masks(app, before), points=POINTS) if before else None
    page = _scores_page(app, folder, out or f"{folder.name}.html") if scores else None
    linked = page.name if page else ""
    html = render_report(record, made_at=utc_now(), other=beside, scores=linked)
    told = {"run": record.state.run_id, "state": record.state.state, **({"scores": str(page)} if page else {})}
    return write_page(app, html, out, f"{folder.name}.html", told, opened, record.gaps)


def _scores_page(app: App, folder: Path, beside: str) -> Path:
    """Write the scores of the checkpoints that a run judged beside its page; return where they are.

    Raises
    ------
    SpecError
        It judged none, or the page is to go to standard output.
    """
    from rlbox.report.read_answers import read_answers, results_of_run
    from rlbox.report.scores_page import render_scores
    from rlbox.system.clock import utc_now
    from rlbox.system.files import require_writable_file, write_atomic

    if beside in ("-", "/dev/stdout"):
        raise click.UsageError("--scores is a second file: name the first one with --out FILE.")
    try:
        found = results_of_run(folder)
    except ValueError as error:
        raise SpecError(str(error)) from error
    if not found:
        raise SpecError(f"run {folder.name} has no scores of checkpoints", next_step="leave out --scores")
    path = Path(beside).with_name(f"{Path(beside).stem}-scores.html")
    with app.checking("file"):
        require_writable_file(path, "another with --out")
    results, problems = [result for _, result in found], list(read_answers(found, run_masks(app, folder)))
    html = render_scores(folder.name, results, problems, made_at=utc_now())
    if not app.dry_run:
        write_atomic(path, html.encode("utf-8", "replace"))
    return path


def _run_folder(app: App, name: str | None, target: str, data: str | None) -> Path:
    if name and (os.sep in name or name in (".", "..")) and Path(name).is_dir():
        return Path(name).resolve()
    ledger = known_disk(app, target, data)
    folder = ledger.find(name)
    bring_up_to_date(app, ledger)
    return folder
