"""`rlbox eval report`: scores and problems as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, open_option, shared, write_page
from rlbox.cli.scores.eval_asked import result_at
from rlbox.cli.scores.eval_show import near_names
from rlbox.errors import SpecError
from rlbox.i18n import _


@click.command("report")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--problem", default="", metavar="NAME", help="The page of this problem alone, with more of each text.")
@click.option("--out", metavar="FILE", help="File to write, - for standard output [FOLDER.html here].")
@open_option
@dry_run
@shared
def report(app: App, folder: Path, problem: str, out: str | None, opened: str) -> int:
    """Write the scores of the results in or below FOLDER, and every problem, as one HTML file that needs nothing else.

    Of a problem: what was asked, what each checkpoint answered, the verdict, and what the program wrote or why it
    failed. Long texts are cut so that the file stays below 2 MB.

    \b
    Examples:
      rlbox eval report eval
      rlbox eval report eval --problem HumanEval/32 --lang zh
    """
    from rlbox.amounts import utc_now
    from rlbox.report.scores_page import default_name, load_results, read_answers, render_scores
    from rlbox.run.data_disk import load_run_masks

    try:
        found = load_results(folder)
    except ValueError as error:
        raise SpecError(str(error)) from error
    if not found:
        result_at(folder)  # which says where there are some
    results = [result for __, result in found]
    problems = list(read_answers(found, load_run_masks(app, folder), problem))
    if problem and not problems:
        known = [
            name for one in results for figures in one.by_problem.values() for of in figures.values() for name in of
        ]
        step = _("choose one of: {near_names}").format(near_names=", ".join(near_names(problem, known)))
        raise SpecError(
            _("no result has a problem {problem!r}").format(problem=problem), where=str(folder), next_step=step
        )
    html = render_scores(folder.resolve().name, results, problems, made_at=utc_now())
    told = {"results": [one.name for one in results], "problems": len(problems)}
    return write_page(app, html, out, default_name(folder, problem), told, opened)
