"""The options that every command has, and what a shell completes in them at TAB."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from rlbox.app import App, make_project_at_option_env_or_cwd
from rlbox.cli.failure import DryRunEndedBeforePlanError
from rlbox.config.project import Project
from rlbox.engine.address import is_engine_on_unix_socket
from rlbox.errors import EngineUnavailable, RlboxError, SpecError
from rlbox.i18n import LANGUAGES, _, set_fallback_translations, translate
from rlbox.run.backend import CLUSTER, DEFAULT_PLACE, DEFAULT_TARGET, SINGLE_MACHINE_PLACES
from rlbox.terminal import sanitize_for_terminal


def _complete_by(
    list_names: Callable[[click.Context, Project], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        del param
        try:  # a shell that completes has no place for an error
            names = list_names(ctx, make_project_at_option_env_or_cwd(ctx.params.get("project")))
            return [name for name in names if name.startswith(incomplete)]
        except (RlboxError, OSError):
            return []

    return complete


def _list_runs(ctx: click.Context, project: Project) -> Iterable[str]:
    from rlbox.run.data_disk import resolve_local_run_store

    if not is_engine_on_unix_socket():  # the data disk is on that other machine, too
        return ()
    app = App(project=project, dry_run=True, verbosity=-1)
    store = resolve_local_run_store(app, ctx.params.get("target") or DEFAULT_TARGET, ctx.params.get("data"))
    return [path.name for path in store.list_run_dirs_newest_first()]


def _list_profiles(ctx: click.Context, project: Project) -> Iterable[str]:
    from rlbox.job.job import load_job

    # click leaves the argument in `args` before an option whose value is being typed
    return load_job(project, ctx.params.get("name") or next(iter(ctx.args), "")).profiles


complete_target = _complete_by(lambda ctx, project: project.own_pack_and_shipped_target_files())
complete_job = _complete_by(lambda ctx, project: project.own_pack_and_shipped_job_files())
complete_target_or_job = _complete_by(
    lambda ctx, project: [*project.own_pack_and_shipped_target_files(), *project.own_pack_and_shipped_job_files()]
)
complete_sources = _complete_by(lambda ctx, project: project.own_pack_and_shipped_source_profile_files())
complete_fix_or_target = _complete_by(
    lambda ctx, project: [*project.own_pack_and_shipped_fix_files(), *project.own_pack_and_shipped_target_files()]
)
complete_profile = _complete_by(_list_profiles)
complete_run = _complete_by(_list_runs)

_LANG = click.option(
    "--lang",
    type=click.Choice(LANGUAGES),
    expose_value=False,  # read before click parses anything: errors and help are in that language, too
    help="Language of help, errors and findings [RLBOX_LANG, else LANG].",
)


def pass_app_with_shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--project`, `--json`, `--lang`, `-v`, `-q` and hand the command an `App` as its first argument."""

    @click.option("--project", metavar="DIR", help="Folder with your own images/ and jobs/ [RLBOX_PROJECT].")
    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
    @_LANG
    @click.option("-v", "--verbose", count=True, help="Print more detail.")
    @click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
    @functools.wraps(function)
    def with_app(
        *args: Any, project: str | None, as_json: bool, verbose: int, quiet: bool, dry_run: bool = False, **rest: Any
    ) -> Any:
        opened = make_project_at_option_env_or_cwd(project)
        if not opened.folder.is_dir():
            step = _("name another with --project DIR, or in RLBOX_PROJECT")
            missing = not opened.folder.exists()
            what = _("the project folder is missing") if missing else _("the project folder is not a directory")
            raise SpecError(what, where=str(opened.folder), next_step=step)
        set_fallback_translations(lambda: _read_fix_translations(opened))
        app = App(project=opened, as_json=as_json, dry_run=dry_run, verbosity=-1 if quiet else verbose)
        if rest.get("sources_profile"):  # a name that is none is met before anything else
            opened.require_sources_profile_file(rest["sources_profile"])
        try:
            return function(app, *args, **rest)
        except RlboxError as error:
            if isinstance(error, EngineUnavailable) and error.next_step and rest.get("place", CLUSTER) != CLUSTER:
                error.next_step += _(", or run without a container: --place here")
            if not dry_run:
                raise
            app.dry.add_refusal_if_new(error)
            raise DryRunEndedBeforePlanError(app.dry) from error

    return with_app


def _read_fix_translations(project: Project) -> dict[str, str]:
    from rlbox.fixes.catalogue import read_chinese_by_english_texts

    return read_chinese_by_english_texts(project.own_pack_and_shipped_fix_files().values())


dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done or refused; change nothing.")
yes_option = click.option("--yes", is_flag=True, help="Skip the confirmation.")
force_option = click.option(
    "--force", is_flag=True, help="Continue even if the versions of the stack contradict each other."
)
data_option = click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA].")
gpus_option = click.option(
    "--gpus",
    metavar="WHICH",
    default="",
    help="GPUs of the container: 2, 0,1, device=0, all, none [RLBOX_GPUS]; else the target's.",
)
sources_option = click.option(
    "--sources",
    "sources_profile",
    metavar="NAME",
    default="",
    envvar="RLBOX_SOURCES",
    shell_complete=complete_sources,
    help="Where files come from: direct, cn, or a file of sources/ [RLBOX_SOURCES].",
)
place_option = click.option(
    "--place",
    type=click.Choice(SINGLE_MACHINE_PLACES),
    default=DEFAULT_PLACE,
    help="In a container, or directly on this machine.",
)
target_argument = click.argument("name", metavar="TARGET", shell_complete=complete_target)
target_or_job_argument = click.argument("name", metavar="TARGET|JOB", shell_complete=complete_target_or_job)
optional_target_argument = click.argument("name", metavar="[TARGET]", required=False, shell_complete=complete_target)
run_argument = click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
NON_NEGATIVE = click.FloatRange(min=0, max=1_000_000_000)
NON_NEGATIVE.name = "number"  # in help and errors


def target_and_data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    target = click.option(
        "--target",
        default=DEFAULT_TARGET,
        metavar="NAME",
        shell_complete=complete_target,
        help="Target whose data disk to use.",
    )
    return target(data_option(function))


def target_profile_and_set_options(function: Callable[..., Any]) -> Callable[..., Any]:
    target = click.option(
        "--target", metavar="NAME", shell_complete=complete_target, help="Target to run on instead of the job's own."
    )
    profile = click.option(
        "--profile",
        "profiles",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_profile,
        help="Named set of the job's parameters; later ones win.",
    )
    setting = click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set one parameter; may be repeated."
    )
    return target(profile(setting(function)))


def confirm_unless_yes(app: App, yes: bool, question: str) -> None:
    """Ask a person before what cannot be taken back or costs money; without a terminal only `--yes` will do."""
    if yes:
        return
    if app.as_json or not sys.stdin.isatty():
        raise click.UsageError(_("there is no terminal to ask on: pass --yes to {what}").format(what=question))
    text = sanitize_for_terminal(translate(question))
    click.confirm(f"{text[0].upper()}{text[1:]}?", abort=True, err=True)


def write_html_file_or_stdout(
    app: App,
    html: str,
    out_option: str | None,
    default_path: str,
    json_result: dict[str, Any],
    left_out_notes: Iterable[str] = (),
) -> int:
    """Write a page to `out_option` (`-`: standard output) or to `default_path`, and say what it lacks."""
    from rlbox.system.files import (
        require_replaceable_or_creatable_file,
        write_atomic,
    )  # 30 ms that completion need not wait for

    data = html.encode("utf-8", "replace")
    if out_option in ("-", "/dev/stdout"):
        sys.stdout.buffer.write(data)
        return 0
    path = Path(out_option or default_path)
    with app.collecting_refusals_if_dry_run("file"):
        require_replaceable_or_creatable_file(path, "--out")
    json_result = {**json_result, "report": os.path.abspath(path)}
    for gap in left_out_notes:
        app.print_status(_("left out: {gap}").format(gap=gap))
    if app.dry_run:
        return app.print_dry_run(json_result, "", _("write {path}").format(path=path))
    write_atomic(path, data)
    app.output(json_result, str(path))
    return 0


SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(SHELLS)))
@pass_app_with_shared_options
def print_completion_script(app: App, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    Examples:
      rlbox completion bash >> ~/.bashrc
    """
    from rlbox.cli.root import COMPLETION, root

    script = SHELLS[shell](root, {}, "rlbox", COMPLETION).source()
    app.output({"shell": shell, "script": script}, script)
