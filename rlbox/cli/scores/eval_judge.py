"""`rlbox eval judge`: a result for each export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.options import dry_run, shared
from rlbox.cli.scores.eval_asked import judged_by, problem_options, sets_of, told
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.export import Export
    from rlbox.evaluation.judge import CheckpointJudge
    from rlbox.evaluation.result import EvaluationResult

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
def judge(app: App, exports: tuple[Path, ...], suites: tuple[str, ...], out: Path, **asked: Any) -> int:
    """Ask the model of each EXPORT, a checkpoint in Hugging Face's form, the problems of suites, and judge its answers.

    What was answered and judged is kept: typed again, it goes on. Code that a model wrote runs in the sandbox alone.

    \b
    Examples:
      rlbox eval judge checkpoints/global_step_100 --suite human-eval --url http://127.0.0.1:8000
      rlbox eval judge checkpoints/global_step_* --suite mine --problems data/raw --engine /opt/venv/bin/python
    """
    from rlbox.evaluation.judge import JudgingError, JudgingTask, judge_checkpoints

    if bool(asked["url"]) == bool(asked["engine"]):
        raise click.UsageError(_("Either --url URL of a server that is up, or --engine FILE to start one."))
    if asked["url"] and len(exports) > 1:
        raise click.UsageError(_("--url is one server: name the one EXPORT that it serves."))
    found = _exports(exports)
    sets = sets_of(app, suites, asked)
    count = sum(len(problems) * suite.decoding.samples for suite, problems in sets)
    if app.dry_run:
        app.not_checked("it is asked when it is judged", "server")
        rows = [{"name": one.name, "step": one.step, "path": str(one.path)} for one in found]
        text = "\n".join(f"{one.name}: {count} answers to judge, {one.path}" for one in found)
        return app.planned({"exports": rows, "answers": count, "out": str(out)}, text, f"write results into {out}")
    with told(), judged_by(asked, sets) as sandbox:
        judging = _judging(app, out, sandbox, asked)
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


def _judging(app: App, out: Path, sandbox: str, asked: dict[str, Any]) -> CheckpointJudge:
    from rlbox.evaluation.judge import CheckpointJudge
    from rlbox.evaluation.model_server import EngineOptions, describe_engine, make_server_factory, parse_setting
    from rlbox.evaluation.sandbox_client import SandboxClient
    from rlbox.system.http import create_loopback_client

    settings = dict(parse_setting(text) for text in asked["settings"])
    where = {"url": asked["url"], "python": asked["engine"], "port": asked["port"], "servers": asked["servers"]}
    return CheckpointJudge(
        sandbox=SandboxClient(sandbox, create_loopback_client(3600.0)),
        serve=make_server_factory(
            EngineOptions(settings=settings, **where), create_loopback_client(_SILENT_S), app.say
        ),
        engine=describe_engine(asked["url"], settings),
        out=out,
        at_once=asked["at_once"],
        say=app.say,
    )
