"""What a shell offers at TAB: names that stand in the project's files, and on a data disk that is here.

A shell that completes has no place for an error, so what cannot be read offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from rlbox.app import App, project_of
from rlbox.config.project import Project
from rlbox.errors import RlboxError
from rlbox.run.backend import DEFAULT_TARGET

if TYPE_CHECKING:
    from rlbox.job.job import Job

Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_Told = tuple[str, str]


def _offers(found: Callable[[click.Context], Iterable[_Told]]) -> Offer:
    """Return what click asks: of the names and descriptions that are found, those that begin as typed."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        try:
            return [CompletionItem(name, help=text) for name, text in found(ctx) if name.startswith(incomplete)]
        except (RlboxError, OSError):
            return []

    return complete


def _project(ctx: click.Context) -> Project:
    return project_of(ctx.params.get("project"))


def _bare(names: Callable[[Project], Iterable[str]]) -> Offer:
    return _offers(lambda ctx: ((name, "") for name in names(_project(ctx))))


def _job(ctx: click.Context) -> Job:
    from rlbox.job.load import load_job

    return load_job(_project(ctx), _name(ctx))


def _name(ctx: click.Context) -> str:
    """Return the command's argument; click leaves it apart before an option whose value is being typed."""
    return ctx.params.get("name") or next(iter(ctx.args), "")


def _runs(ctx: click.Context) -> Sequence[Path]:
    """Return the runs, the latest first; none where the engine, and so the data disk, is on another machine."""
    from rlbox.engine.address import is_engine_local
    from rlbox.run.data_disk import open_local_run_store

    if not is_engine_local():
        return ()
    app = App(project=_project(ctx), as_json=False, dry_run=True, verbosity=-1)
    return open_local_run_store(app, ctx.params.get("target") or DEFAULT_TARGET, ctx.params.get("data")).list_run_dirs()


def _run(ctx: click.Context) -> Path | None:
    """Return the run that is named, by the beginning of its name as well, or the latest."""
    name = _name(ctx)
    return next((path for path in _runs(ctx) if path.name.startswith(name)), None)


def _profiles(ctx: click.Context) -> Iterable[_Told]:
    return ((name, "") for name in _job(ctx).profiles)


def _settings(ctx: click.Context) -> Iterable[_Told]:
    for name, param in _job(ctx).params.items():
        values = param.choices or ((param.default,) if param.default is not None else ("",))
        yield from ((f"{name}={_typed(value)}", param.help) for value in values)


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stages(ctx: click.Context) -> Iterable[_Told]:
    return ((stage.name, stage.title) for stage in _job(ctx).stages)


def _published(ctx: click.Context) -> Iterable[_Told]:
    return ((name, "") for service in _job(ctx).services for name in service.ports)


def _stages_of_run(ctx: click.Context) -> Iterable[_Told]:
    return ((name, "") for name in dict.fromkeys(path.parent.name.partition("-")[2] for path in _logs(ctx)))


def _logs_of_run(ctx: click.Context) -> Iterable[_Told]:
    return ((name, "") for name in dict.fromkeys(path.stem for path in _logs(ctx)))


def _logs(ctx: click.Context) -> Sequence[Path]:
    from rlbox.logs.run_logs import find_logs

    run = _run(ctx)
    return find_logs(run, ctx.params.get("stage"), None, None) if run else ()


complete_target = _bare(Project.targets)
complete_job = _bare(Project.jobs)
complete_sources = _bare(Project.source_profiles)
complete_fix = _bare(Project.fix_files)
complete_run = _offers(lambda ctx: ((path.name, "") for path in _runs(ctx)))
complete_profile = _offers(_profiles)
complete_setting = _offers(_settings)
complete_stage = _offers(_stages)
complete_publish = _offers(_published)
complete_stage_of_run = _offers(_stages_of_run)
complete_log_of_run = _offers(_logs_of_run)
