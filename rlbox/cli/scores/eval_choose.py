"""`rlbox eval choose`: the best of the checkpoints that were judged."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import Amount, shared
from rlbox.cli.scores.eval_asked import locks_differ, result_at, told
from rlbox.errors import WorkFailed


@click.command("choose")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--baseline", type=click.Path(path_type=Path), metavar="RESULT", help="Result that must not be lost.")
@click.option("--guard", default="humaneval", show_default=True, metavar="SUITE", help="Suite that must not drop.")
@click.option("--by", multiple=True, metavar="SUITE", help="Suite that decides [codecontests_valid]; may be repeated.")
@click.option("--margin", type=Amount(), default=0.0, help="Points of loss to rule out [what shows].")
@shared
def choose(app: App, folder: Path, baseline: Path | None, guard: str, by: tuple[str, ...], margin: float) -> int:
    """Say which of the results below FOLDER is the best checkpoint, and whether it has lost what the baseline could.

    Of those whose programs run, none clearly more often, the one that is right most often; of those, the earliest.
    `Clearly` is a paired interval without 0. Exit code 1 when GUARD has clearly dropped below the baseline.

    \b
    Examples:
      rlbox eval choose outputs/phase1 --baseline outputs/phase0/step_0
      rlbox eval choose eval --by mine --guard mine
    """
    from rlbox.evaluation.result import LocksDifferError
    from rlbox.evaluation.result_files import read_export_path, read_results
    from rlbox.evaluation.selection import best_to_json, build_rule, choose_checkpoint, format_best

    try:
        with told():
            results = read_results(folder)
            if not results:
                result_at(folder)  # which says where there are some
            held = result_at(baseline) if baseline else None
            found = choose_checkpoint(results, baseline=held, guard=guard, margin=margin / 100, rule=build_rule(by))
    except LocksDifferError as error:
        raise locks_differ(error, folder) from error
    told_of = best_to_json(found) | {"model": read_export_path(folder / found.best.name)}
    app.result({"best": told_of}, "\n".join(format_best(found)))
    return WorkFailed.exit_code if found.worse else 0
