"""What a shell offers at TAB: names in the project's files, and runs on a local data disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from rlbox.app import App, project_from_option_or_cwd
from rlbox.config.project import Project
from rlbox.engine.address import is_engine_local
from rlbox.errors import RlboxError
from rlbox.run.backend import DEFAULT_TARGET


def _complete_by(
    list_names: Callable[[click.Context, Project], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        del param
        try:  # a shell that completes has no place for an error
            names = list_names(ctx, project_from_option_or_cwd(ctx.params.get("project")))
            return [name for name in names if name.startswith(incomplete)]
        except (RlboxError, OSError):
            return []

    return complete


def _list_runs(ctx: click.Context, project: Project) -> Iterable[str]:
    from rlbox.run.data_disk import locate_local_run_store

    if not is_engine_local():  # the data disk is on that other machine, too
        return ()
    app = App(project=project, dry_run=True, verbosity=-1)
    store = locate_local_run_store(app, ctx.params.get("target") or DEFAULT_TARGET, ctx.params.get("data"))
    return [path.name for path in store.list_run_dirs_newest_first()]


def _list_profiles(ctx: click.Context, project: Project) -> Iterable[str]:
    from rlbox.job.load import load_job

    # click leaves the argument in `args` before an option whose value is being typed
    return load_job(project, ctx.params.get("name") or next(iter(ctx.args), "")).profiles


complete_target = _complete_by(lambda ctx, project: project.targets())
complete_job = _complete_by(lambda ctx, project: project.jobs())
complete_sources = _complete_by(lambda ctx, project: project.source_profiles())
complete_fix_or_target = _complete_by(lambda ctx, project: [*project.fix_files(), *project.targets()])
complete_profile = _complete_by(_list_profiles)
complete_run = _complete_by(_list_runs)
