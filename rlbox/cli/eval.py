"""`rlbox eval`: scores of checkpoints, what they were made with, and which checkpoint is best."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.eval_judge import judge, load_result, make_locks_error, prove, suites, translate_errors
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import (
    OpenMode,
    dry_run_option,
    open_auto_yes_no_option,
    pass_app_with_shared_options,
    write_page,
)
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.lock import LocksDifferError


_MAX_FAULTS = 20
"""Faults that are named, at most; -v names all."""
_MAX_FIELDS = 12
"""Fields that a refusal names, at most."""
_STACK_PYTHON = Path("/opt/venv/bin/python")
_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command("check")
@click.argument("export", metavar="EXPORT", type=click.Path(path_type=Path))
@click.option("--against", required=True, metavar="DIR", type=_DIRECTORY, help="The trainer's checkpoint: its shards.")
@click.option(
    "--model", metavar="DIR", type=_DIRECTORY, help="Whose tokenizer and configuration are due [DIR/huggingface]."
)
@click.option(
    "--python", default="", metavar="FILE", help="Interpreter with torch and the merger [/opt/venv/bin/python]."
)
@pass_app_with_shared_options
def check(
    app: App,
    export: Path,
    against: Path,
    model: Path | None,
    python: str,
) -> int:
    """Compare EXPORT, a checkpoint in Hugging Face's form, with the trainer's shards, tensor by tensor and bit by bit.

    Shards are first merged into TMPDIR by the framework that wrote them: FSDP by verl.model_merger, DeepSpeed
    (ZeRO 1 to 3) by its zero_to_fp32. Tokenizer, chat template and configuration must match --model. Exit code
    1 if there is a difference.

    \b
    Examples:
      rlbox eval check ckpts/global_step_100/huggingface --against ckpts/global_step_100 --model models/Qwen3-8B
      rlbox eval check export --against ckpts/global_step_100/actor --python /opt/venv/bin/python
    """
    from rlbox.evaluation.export import find_export
    from rlbox.evaluation.export_check import (
        ComparisonFailedError,
        PackageMissingError,
        check_export,
        find_hf_model_in_checkpoint,
        format_report,
    )

    interpreter = python or (str(_STACK_PYTHON) if _STACK_PYTHON.is_file() else sys.executable)
    try:
        directory = find_export(export).path
        if not (reference := model or find_hf_model_in_checkpoint(directory, against)):
            step = f"rlbox eval check {shlex.quote(str(export))} --against {shlex.quote(str(against))} --model DIR"
            raise SpecError(_("no model says which tokenizer is due"), where=str(against), next_step=step)

        def print_progress(done: int, total: int) -> None:
            app.print_status(f"{done} of {total} tensors are compared")

        report = check_export(directory, against, reference, interpreter, print_progress)
    except PackageMissingError as error:
        step = _("name an interpreter that has torch and transformers with --python FILE")
        raise SpecError(
            _("{own} lacks a package: {error}").format(own=interpreter, error=error), next_step=step
        ) from error
    except ComparisonFailedError as error:
        raise WorkFailed(_("nothing was compared: {error}").format(error=error), where=str(against)) from error
    except ValueError as error:
        raise SpecError(str(error)) from error
    shown = len(report.faults) if app.verbosity > 0 else _MAX_FAULTS
    app.result({"check": report.as_json()}, "\n".join(format_report(report, shown)))
    return 0 if report.is_good else WorkFailed.exit_code


@click.command("show")
@click.argument("path", metavar="RESULT", type=click.Path(path_type=Path))
@pass_app_with_shared_options
def show(app: App, path: Path) -> None:
    """Print the model of RESULT, and the scores of each benchmark with their intervals; -v lists the unsolved
    problems.

    \b
    Examples:
      rlbox eval show eval/step_100 -v
    """
    from rlbox.evaluation.comparison import format_result

    result = load_result(path)
    facts = result.get_name_step_digests() | {"parts": dict(result.lock.parts)}
    scores = {suite: dict(row) for suite, row in result.scores.items()}
    lines = format_result(result, list_unsolved=app.verbosity > 0)
    app.result({"result": facts, "scores": scores}, "\n".join(lines))


@click.command("compare")
@click.argument("one", metavar="RESULT", type=click.Path(path_type=Path))
@click.argument("other", metavar="OTHER", type=click.Path(path_type=Path))
@click.option("--across", multiple=True, metavar="FIELD", help="Field of the lock that may differ; may be repeated.")
@pass_app_with_shared_options
def compare(app: App, one: Path, other: Path, across: tuple[str, ...]) -> None:
    """Compare RESULT with OTHER per benchmark: the difference and its interval, problems gained and lost.

    Results with different evaluation fingerprints are rejected, with exit code 1 and the fields. A FIELD is
    dotted, and includes all fields below it: `engine`, `decoding.humaneval.max_tokens`.

    \b
    Examples:
      rlbox eval compare eval/step_200 eval/step_100
      rlbox eval compare eval/step_200 eval/step_100 --across engine.version
    """
    from rlbox.evaluation.comparison import compare_results, comparison_to_json, format_comparison
    from rlbox.evaluation.lock import LocksDifferError

    try:
        with translate_errors():
            comparison = compare_results(load_result(one), load_result(other), across)
    except LocksDifferError as error:
        again = f"rlbox eval compare {shlex.quote(str(one))} {shlex.quote(str(other))}"
        raise _make_comparison_error(error, again) from error
    app.result({"compare": comparison_to_json(comparison)}, "\n".join(format_comparison(comparison)))


def _make_comparison_error(error: LocksDifferError, command: str) -> WorkFailed:
    """Return the refusal of two locks, which names the fields; `command` is the command that `--across` may follow."""
    fields = [str(difference) for difference in error.differences[:_MAX_FIELDS]]
    more = len(error.differences) - len(fields)
    fields += [f"and {more} more"] if more else []
    lines = "".join(f"\n  | {line}" for line in fields)
    parts = dict.fromkeys(difference.field.partition(".")[0] for difference in error.differences)
    allowed = " ".join(f"--across {part}" for part in parts)
    return WorkFailed(
        _("not comparable, the evaluation fingerprints differ in{lines}").format(lines=lines),
        next_step=_("judge both with one lock; or, to compare just that: {again} {allowed}").format(
            again=command, allowed=allowed
        ),
    )


@click.command("choose")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--baseline", type=click.Path(path_type=Path), metavar="RESULT", help="Result that must not be lost.")
@click.option("--guard", default="humaneval", show_default=True, metavar="SUITE", help="Suite that must not drop.")
@click.option("--by", multiple=True, metavar="SUITE", help="Suite that decides [codecontests_valid]; may be repeated.")
@pass_app_with_shared_options
def choose(app: App, folder: Path, baseline: Path | None, guard: str, by: tuple[str, ...]) -> int:
    """Find the best checkpoint among the results below FOLDER, and check whether it lost abilities of the
    baseline.

    Of those whose programs run, none clearly more often, the one that is right most often; of those, the earliest.
    `Clearly` is a paired interval without 0. Exit code 1 when GUARD has clearly dropped below the baseline.

    \b
    Examples:
      rlbox eval choose outputs/phase1 --baseline outputs/phase0/step_0
      rlbox eval choose eval --by mine --guard mine
    """
    from rlbox.evaluation.files import read_result_export_path, read_results
    from rlbox.evaluation.lock import LocksDifferError
    from rlbox.evaluation.selection import build_selection_rule, choice_to_json, choose_best_and_compare, format_choice

    try:
        with translate_errors():
            results = read_results(folder)
            if not results:
                load_result(folder)  # which says where there are some
            reference = load_result(baseline) if baseline else None
            choice = choose_best_and_compare(
                results, baseline=reference, guard_suite=guard, rule=build_selection_rule(by)
            )
    except LocksDifferError as error:
        raise make_locks_error(error, folder) from error
    best = choice_to_json(choice) | {"model": read_result_export_path(folder / choice.result.name)}
    app.result({"best": best}, "\n".join(format_choice(choice)))
    return WorkFailed.exit_code if choice.has_regressed_on_guard else 0


@click.command("report")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--out", metavar="FILE", help="File to write, - for standard output [FOLDER.html here].")
@open_auto_yes_no_option
@dry_run_option
@pass_app_with_shared_options
def report(app: App, folder: Path, out: str | None, opened: OpenMode) -> int:
    """Write the scores of the results in or below FOLDER, and every problem, as one HTML file that needs nothing else.

    For each problem: the question, the answer of each checkpoint, the verdict, and the program's output or its
    error. Long texts are cut so that the file stays below 2 MB.

    \b
    Examples:
      rlbox eval report eval
      rlbox eval report eval --out scores.html --lang zh
    """
    from rlbox.amounts import utc_now
    from rlbox.report.scores_page import load_results_with_folders, read_answers, render_scores
    from rlbox.run.data_disk import load_run_masks

    try:
        found = load_results_with_folders(folder)
    except ValueError as error:
        raise SpecError(str(error)) from error
    if not found:
        load_result(folder)  # which says where there are some
    results = [result for __, result in found]
    problems = list(read_answers(found, load_run_masks(app, folder)))
    name = folder.resolve().name
    html = render_scores(name, results, problems, made_at=utc_now())
    told = {"results": [one.name for one in results], "problems": len(problems)}
    return write_page(app, html, out, f"{name}.html", told, opened)


@click.group(cls=TranslatedGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --project DIR.")
def eval() -> None:
    """Judge checkpoints by suites of problems, say how sure a score is, and choose the best.

    A RESULT is the folder of one checkpoint that `rlbox eval judge` or the job sft wrote, or its summary.json.

    \b
    Examples:
      rlbox eval suites
      rlbox eval judge checkpoints/global_step_100 --suite human-eval --url http://127.0.0.1:8000
      rlbox eval compare eval/step_200 eval/step_100
    """


for command in (suites, prove, check, judge, show, compare, choose, report):
    eval.add_command(command)
