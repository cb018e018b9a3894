"""`rlbox eval compare`: two results problem by problem, if their locks allow it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.options import shared
from rlbox.cli.scores.eval_asked import result_at, told
from rlbox.errors import WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.result import LocksDifferError

_NAMED = 12
"""Fields that a refusal names, at most."""


@click.command("compare")
@click.argument("one", metavar="RESULT", type=click.Path(path_type=Path))
@click.argument("other", metavar="OTHER", type=click.Path(path_type=Path))
@click.option("--across", multiple=True, metavar="FIELD", help="Field of the lock that may differ; may be repeated.")
@shared
def compare(app: App, one: Path, other: Path, across: tuple[str, ...]) -> None:
    """Say how RESULT stands to OTHER, suite by suite: the difference and its interval, problems won and lost.

    Results that were made with different evaluation locks are refused, with exit code 1 and the fields. A FIELD is
    dotted, and stands for all below it: `engine`, `decoding.humaneval.max_tokens`.

    \b
    Examples:
      rlbox eval compare eval/step_200 eval/step_100
      rlbox eval compare eval/step_200 eval/step_100 --across engine.version
    """
    from rlbox.evaluation.result import LocksDifferError
    from rlbox.evaluation.view import compare_results, comparison_to_json, format_comparison

    try:
        with told():
            found = compare_results(result_at(one), result_at(other), across)
    except LocksDifferError as error:
        raise not_comparable(error, f"rlbox eval compare {shlex.quote(str(one))} {shlex.quote(str(other))}") from error
    app.result({"compare": comparison_to_json(found)}, "\n".join(format_comparison(found)))


def not_comparable(error: LocksDifferError, again: str) -> WorkFailed:
    """Return the refusal of two locks, which names the fields; `again` is the command that `--across` may follow."""
    fields = [f"{change.field}: {change.one!r} and {change.other!r}" for change in error.fields[:_NAMED]]
    more = len(error.fields) - len(fields)
    fields += [f"and {more} more"] if more else []
    lines = "".join(f"\n  | {line}" for line in fields)
    parts = dict.fromkeys(change.field.partition(".")[0] for change in error.fields)
    allowed = " ".join(f"--across {part}" for part in parts)
    return WorkFailed(
        _("not comparable, the evaluation locks differ in{lines}").format(lines=lines),
        next_step=_("judge both with one lock; or, to compare just that: {again} {allowed}").format(
            again=again, allowed=allowed
        ),
    )
