"""What a shell offers at TAB: names in the project's files, and runs on a local data disk.

A shell that completes has no place for an error, so what cannot be read offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from rlbox.app import App, project_from_option_or_cwd
from rlbox.config.project import Project
from rlbox.errors import RlboxError
from rlbox.run.backend import DEFAULT_TARGET

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _complete_by(list_names: Callable[[click.Context], Iterable[str]]) -> Completer:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        del param
        try:
            return [name for name in list_names(ctx) if name.startswith(incomplete)]
        except (RlboxError, OSError):
            return []

    return complete


def _project(ctx: click.Context) -> Project:
    return project_from_option_or_cwd(ctx.params.get("project"))


def _list_runs(ctx: click.Context) -> Iterable[str]:
    """Return the runs, the latest first; none where the engine, and so the data disk, is on another machine."""
    from rlbox.engine.address import is_engine_local
    from rlbox.run.data_disk import locate_local_run_store

    if not is_engine_local():
        return ()
    app = App(project=_project(ctx), dry_run=True, verbosity=-1)
    store = locate_local_run_store(app, ctx.params.get("target") or DEFAULT_TARGET, ctx.params.get("data"))
    return [path.name for path in store.list_run_dirs_newest_first()]


def _list_profiles(ctx: click.Context) -> Iterable[str]:
    from rlbox.job.load import load_job

    # click leaves the argument in `args` before an option whose value is being typed
    return load_job(_project(ctx), ctx.params.get("name") or next(iter(ctx.args), "")).profiles


complete_target = _complete_by(lambda ctx: _project(ctx).targets())
complete_job = _complete_by(lambda ctx: _project(ctx).jobs())
complete_sources = _complete_by(lambda ctx: _project(ctx).source_profiles())
complete_fix = _complete_by(lambda ctx: _project(ctx).fix_files())
complete_profile = _complete_by(_list_profiles)
complete_run = _complete_by(_list_runs)
