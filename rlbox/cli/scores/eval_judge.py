"""`rlbox eval judge`: a result for each export."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.cli.offered import complete_run
from rlbox.cli.options import Amount, disk_options, dry_run, shared
from rlbox.cli.scores.eval_asked import Sets, judged_by, problem_options, sets_of, told
from rlbox.cli.scores.eval_follow import ends_with, follow_run, one_folder
from rlbox.errors import SpecError, WorkFailed

if TYPE_CHECKING:
    from rlbox.evaluation.export import Export
    from rlbox.evaluation.judge import Judging
    from rlbox.evaluation.result import EvaluationResult
    from rlbox.evaluation.server import Serve

_SILENT_S = 1800.0
_FILE = click.Path(path_type=Path)


@click.command("judge")
@click.argument("exports", metavar="EXPORT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--suite", "suites", multiple=True, required=True, metavar="SUITE", help="Suite; may be repeated.")
@click.option("--url", default="", metavar="URL", help="Server of OpenAI's API that serves the one EXPORT.")
@click.option("--engine", default="", metavar="FILE", help="Interpreter that has vLLM: one is started for all EXPORTs.")
@click.option(
    "--training", multiple=True, metavar="FILE", type=_FILE, help="Data of the training: find problems in it."
)
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
@click.option(
    "--follow",
    default="",
    metavar="RUN",
    shell_complete=complete_run,
    help="Judge what RUN writes as it appears below EXPORT.",
)
@click.option(
    "--settle",
    type=Amount(),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Unchanged for so long, a checkpoint is whole.",
)
@problem_options
@disk_options
@dry_run
@shared
def judge(app: App, exports: tuple[Path, ...], suites: tuple[str, ...], out: Path, **asked: Any) -> int:
    """Ask the model of each EXPORT, a checkpoint in Hugging Face's form, the problems of suites, and judge its answers.

    What was answered and judged is kept: typed again, it goes on. Code that a model wrote runs in the sandbox alone.
    With --follow, EXPORT is the folder of the checkpoints: each is judged once it is whole, until RUN has ended.

    \b
    Examples:
      rlbox eval judge checkpoints/global_step_100 --suite human-eval --url http://127.0.0.1:8000
      rlbox eval judge checkpoints/global_step_* --suite mine --problems data/raw --engine /opt/venv/bin/python
      rlbox eval judge checkpoints --follow sft-20260101 --suite mine --problems data/raw --engine /opt/venv/bin/python
    """
    from rlbox.evaluation.judge import NotJudged
    from rlbox.evaluation.serving.in_turn import WantedResult, judge_all

    if bool(asked["url"]) == bool(asked["engine"]):
        raise click.UsageError("Either --url URL of a server that is up, or --engine FILE to start one.")
    if asked["url"] and len(exports) > 1:
        raise click.UsageError("--url is one server: name the one EXPORT that it serves.")
    if asked["follow"]:
        return _follow(app, one_folder(exports, asked["url"]), suites, out, asked)
    found = _exports(exports)
    sets = sets_of(app, suites, asked)
    count = sum(len(problems) * suite.decoding.samples for suite, problems in sets)
    if app.dry_run:
        app.not_checked("it is asked when it is judged", "server")
        rows = [{"name": one.name, "step": one.step, "path": str(one.path)} for one in found]
        text = "\n".join(f"{one.name}: {count} answers to judge, {one.path}" for one in found)
        return app.planned({"exports": rows, "answers": count, "out": str(out)}, text, f"write results into {out}")
    first = found[0].path, out / found[0].name
    with told(), _serving(app, asked, first) as serve, judged_by(asked, sets) as sandbox:
        judging = _judging(app, out, sandbox, serve, asked, _overlap(sets, asked))
        judged = judge_all(judging, [WantedResult(export=export, suites=sets) for export in found])
        if len(found) == len(judged.failed) == 1:
            raise NotJudged(*judged.failed.values())
    code = _show(app, judged.results, out, judged.failed)
    for name, why in judged.failed.items():
        app.say(f"not judged: {name}: {why}")
    return WorkFailed.exit_code if judged.failed else code


def _exports(exports: tuple[Path, ...]) -> list[Export]:
    from rlbox.evaluation.export import export_at

    with told():
        found = [export_at(path) for path in exports]
    if len({one.name for one in found}) < len(found):
        raise SpecError("two exports have one name", where=", ".join(str(one.path) for one in found))
    return found


def _follow(app: App, folder: Path, suites: tuple[str, ...], out: Path, asked: dict[str, Any]) -> int:
    from rlbox.evaluation.following.appearing import find_appearing

    run, sets = asked["follow"], sets_of(app, suites, asked)
    ended = ends_with(app, run, asked["target"], asked["data"])
    if app.dry_run:
        app.not_checked("it is asked when it is judged", "server")
        there = [one for one in find_appearing(folder) if one.export]
        rows = [{"name": one.export.name, "path": str(one.folder), "lacks": one.lacks} for one in there if one.export]
        text = "\n".join(f"{row['name']}: {row['path']}" for row in rows)
        would = f"judge what appears in {folder} until run {run} has ended, and write results into {out}"
        return app.planned({"exports": rows, "out": str(out)}, text, would)
    with told(), judged_by(asked, sets) as sandbox, _serving(app, asked) as serve:
        judging = _judging(app, out, sandbox, serve, asked, _overlap(sets, asked))
        app.say(f"judging what appears in {folder} until run {run} has ended")
        found = follow_run(app, folder, judging, sets, ended, asked["settle"])
    code = _show(app, sorted(found.results.values(), key=lambda one: one.step), out, found.failed)
    return WorkFailed.exit_code if found.failed else code


def _show(app: App, results: list[EvaluationResult], out: Path, failed: Mapping[str, str] = {}) -> int:
    from rlbox.evaluation.view import result_facts, result_lines

    lines = [line for one in results for line in result_lines(one, unsolved=app.verbosity > 0)]
    told_of = [result_facts(one) | {"scores": {name: dict(row) for name, row in one.scores.items()}} for one in results]
    app.result({"results": told_of, "failed": dict(failed), "out": str(out)}, "\n".join(lines))
    return 0


def _overlap(sets: Sets, asked: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from rlbox.evaluation.overlap.training_rows import find_overlap

    if not asked["training"]:
        return {}
    return find_overlap({suite.name: problems for suite, problems in sets}, asked["training"], asked["python"])


@contextlib.contextmanager
def _serving(app: App, asked: dict[str, Any], first: tuple[Path, Path] | None = None) -> Iterator[Serve]:
    from rlbox.evaluation.server import setting
    from rlbox.evaluation.serving.engines import WantedEngine, serving
    from rlbox.system.http import create_loopback_client

    settings = dict(setting(text) for text in asked["settings"])
    where = {"url": asked["url"], "python": asked["engine"], "port": asked["port"], "servers": asked["servers"]}
    wanted = WantedEngine(settings=settings, **where)
    with serving(wanted, create_loopback_client(_SILENT_S), app.say, first) as serve:
        yield serve


def _judging(
    app: App, out: Path, sandbox: str, serve: Serve, asked: dict[str, Any], overlap: dict[str, dict[str, Any]]
) -> Judging:
    from rlbox.evaluation.judge import Judging
    from rlbox.evaluation.sandbox import Sandbox
    from rlbox.evaluation.server import engine_facts, setting
    from rlbox.system.http import create_loopback_client

    return Judging(
        sandbox=Sandbox(sandbox, create_loopback_client(3600.0)),
        serve=serve,
        engine=engine_facts(asked["url"], dict(setting(text) for text in asked["settings"])),
        out=out,
        at_once=asked["at_once"],
        overlap=overlap,
        say=app.say,
    )
