"""`rlbox eval show`: one result, or one problem of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.options import shared
from rlbox.cli.scores.eval_asked import result_at
from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.result import EvaluationResult


@click.command("show")
@click.argument("path", metavar="RESULT", type=click.Path(path_type=Path))
@click.option("--problem", default="", metavar="NAME", help="Show the answers to this problem instead.")
@shared
def show(app: App, path: Path, problem: str) -> None:
    """Say what RESULT is of, and each suite's scores with their intervals; -v names what was not solved.

    With --problem: what was asked, what the model answered, the verdict and why.

    \b
    Examples:
      rlbox eval show eval/step_100 -v
      rlbox eval show eval/step_100 --problem HumanEval/32
    """
    from rlbox.evaluation.view import describe_result, format_result

    result = result_at(path)
    if problem:
        return _problem(app, path if path.is_dir() else path.parent, result, problem)
    facts = describe_result(result) | {"parts": dict(result.lock.parts)}
    scores = {name: dict(row) for name, row in result.scores.items()}
    lines = format_result(result, unsolved=app.verbosity > 0)
    return app.result({"result": facts, "scores": scores}, "\n".join(lines))


def _problem(app: App, folder: Path, result: EvaluationResult, problem: str) -> None:
    from rlbox.evaluation.result_files import AnswerFiles, make_answer_keys

    found = list(AnswerFiles(folder, make_answer_keys(result.lock)).all_of(problem))
    if not found:
        raise SpecError(
            _("{result} has no answer to a problem {problem!r}").format(result=result.name, problem=problem),
            where=str(folder),
            next_step=_("choose one of: {near_names}").format(
                near_names=", ".join(near_names(problem, result.problem_names))
            ),
        )
    app.result({"answers": [{"suite": suite, **row} for suite, row in found]}, _text(app, found))


def near_names(problem: str, known: list[str]) -> list[str]:
    """Return the names that are most like one that is not there."""
    import difflib

    names = list(dict.fromkeys(known))
    return difflib.get_close_matches(problem, names, n=5, cutoff=0) or names[:5]


def _text(app: App, found: list[tuple[str, dict[str, Any]]]) -> str:
    """Return answers to be read; what was asked and answered stays as it is."""
    parts = []
    for suite, row in found:
        head = f"{suite} {row['problem']}, answer {row['number'] + 1}: {row.get('outcome', 'not judged')}"
        parts += [head, str(row.get("detail", "")), "was asked:", _indented(row.get("ask"))]
        parts += ["was answered:", _indented(row.get("text"))]
    return "\n".join(part for part in parts if part)


def _indented(text: Any) -> str:
    return "\n".join(f"  {line}" for line in str(text or "").splitlines())
