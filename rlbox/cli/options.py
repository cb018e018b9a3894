"""The options that every command has, spelt once."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import click

from rlbox.app import App, project_from_option_or_cwd
from rlbox.cli.completers import complete_profile, complete_sources, complete_target
from rlbox.cli.failure import RefusedDryRunError
from rlbox.config.project import Project
from rlbox.errors import NotAnswered, RlboxError, SpecError
from rlbox.i18n import LANGUAGES, _, set_fallback
from rlbox.run.backend import CLUSTER, DEFAULT_PLACE, DEFAULT_TARGET, PLACES, SINGLE_MACHINE_PLACES


def lang_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lang`, which is read before click parses anything: errors and help are in that language, too."""
    return click.option(
        "--lang",
        type=click.Choice(LANGUAGES),
        expose_value=False,
        help="Language of help, errors and findings [RLBOX_LANG, else LANG].",
    )(function)


def pass_app_with_shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--project`, `--json`, `--lang`, `-v`, `-q` and hand the command an `App` as its first argument."""

    @click.option("--project", metavar="DIR", help="Folder with your own images/ and jobs/ [RLBOX_PROJECT].")
    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
    @lang_option
    @click.option("-v", "--verbose", count=True, help="Print more detail.")
    @click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
    @functools.wraps(function)
    def with_app(
        *args: Any,
        project: str | None,
        as_json: bool,
        verbose: int,
        quiet: bool,
        dry_run: bool = False,
        **rest: Any,
    ) -> Any:
        found = _there(project_from_option_or_cwd(project), named=bool(project))
        set_fallback(lambda: _read_fix_translations(found))
        app = App(
            project=found,
            as_json=as_json,
            dry_run=dry_run,
            verbosity=-1 if quiet else verbose,
        )
        if rest.get("sources"):  # a name that is none is met before anything else
            app.project.require_sources_profile_file(rest["sources"])
        try:
            return function(app, *args, **rest)
        except RlboxError as error:
            if not dry_run:
                raise
            app.dry.add_refusal(error)
            raise RefusedDryRunError(app.dry) from error

    return with_app


def _read_fix_translations(project: Project) -> dict[str, str]:
    from rlbox.fixes.catalogue import read_chinese_translations

    return read_chinese_translations(project.fix_files().values())


def _there(project: Project, *, named: bool) -> Project:
    if project.folder.is_dir():
        return project
    if not named and os.environ.get("RLBOX_PROJECT"):
        what, step = _("the folder of RLBOX_PROJECT is missing"), _("correct or unset RLBOX_PROJECT")
        raise SpecError(what, where=str(project.folder), next_step=step)
    raise SpecError(
        _("the project folder is missing"), where=str(project.folder), next_step=_("name another with --project DIR")
    )


def dry_run_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--dry-run` to a command that changes something; it reads `app.dry_run`."""
    return click.option("--dry-run", is_flag=True, help="Print what would be done or refused; change nothing.")(
        function
    )


class NonNegativeNumber(click.FloatRange):
    """A number from 0 on that can be reckoned with: neither `nan`, which no comparison refuses, nor without end."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(min=0, max=1_000_000_000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As a float range, without `nan`."""
        number = super().convert(value, param, ctx)
        return (
            self.fail(_("{value!r} is not a number.").format(value=value), param, ctx) if number != number else number
        )


class DurationWithUnitToSeconds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """How long ago: `7d`, `12h`; in seconds, and 0 for nothing."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As a duration of a spec."""
        from rlbox.config.units import parse_quantity

        try:
            return float(parse_quantity("duration", value)) if value else 0.0
        except ValueError as error:
            return self.fail(str(error), param, ctx)


def target_and_data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--target` and `--data`, which say where the runs are."""
    for option in (
        click.option("--data", metavar="DIR", help="Host directory that is the data disk [RLBOX_DATA]."),
        click.option(
            "--target",
            default=DEFAULT_TARGET,
            metavar="NAME",
            shell_complete=complete_target,
            help="Target whose data disk to use.",
        ),
    ):
        function = option(function)
    return function


def target_profile_and_set_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--target`, `--profile` and `--set`: what a job is to be run with."""
    for option in (
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="Set one parameter; may be repeated.",
        ),
        click.option(
            "--profile",
            "profiles",
            multiple=True,
            metavar="NAME",
            shell_complete=complete_profile,
            help="Named set of the job's parameters; later ones win.",
        ),
        click.option(
            "--target",
            metavar="NAME",
            shell_complete=complete_target,
            help="Target to run on instead of the job's own.",
        ),
    ):
        function = option(function)
    return function


def _place_option(places: Iterable[str], words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what adds `--place NAME`. It is the way out, too, where no engine answers."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--place", type=click.Choice(list(places)), default=DEFAULT_PLACE, help=words)
        @functools.wraps(function)
        def placed(*args: Any, **rest: Any) -> Any:
            try:
                return function(*args, **rest)
            except NotAnswered as error:
                if error.next_step and rest.get("place") != CLUSTER:
                    error.next_step += _("; or without: --place here")
                raise

        return placed

    return add


place_option = _place_option(SINGLE_MACHINE_PLACES, "In a container, or in place.")
"""One of the places of one machine."""

run_place_option = _place_option(PLACES, "In a container, on the host without one, or on a running cluster.")
"""One of all where runs can take place."""


OpenMode = Literal["auto", "yes", "no"]


def open_auto_yes_no_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--open`: whether a page is shown in a browser."""
    return click.option(
        "--open",
        "opened",
        type=click.Choice(["auto", "yes", "no"]),
        default="auto",
        is_flag=False,
        flag_value="yes",
        help="Open it in a browser.",
    )(function)


def open_browser(app: App, open_mode: OpenMode, address: str) -> None:
    """Open a browser when asked to, or when a person at a desktop waits for it; say so where there is none."""
    desktop = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    person = app.can_show_progress and sys.stdout.isatty() and desktop
    if open_mode == "no" or (open_mode == "auto" and not person):
        return
    import webbrowser

    if not webbrowser.open(address):
        app.print_status(f"no browser was found here; the page is {address}")


def write_page(
    app: App,
    html: str,
    out_option: str | None,
    default_path: str,
    json_result: dict[str, Any],
    open_mode: OpenMode,
    left_out_notes: Iterable[str] = (),
) -> int:
    """Write a page to `out_option` (`-`: standard output) or to `default_path`, say what it lacks, and open it."""
    from rlbox.system.files import require_writable_file, write_atomic

    data = html.encode("utf-8", "replace")
    if out_option in ("-", "/dev/stdout"):
        sys.stdout.buffer.write(data)
        return 0
    path = Path(out_option or default_path)
    with app.collecting_refusals_if_dry_run("file"):
        require_writable_file(path, "another with --out")
    json_result = {**json_result, "report": os.path.abspath(path)}
    for gap in left_out_notes:
        app.print_status(f"left out: {gap}")
    if app.dry_run:
        return app.planned(json_result, "", f"write {path}")
    write_atomic(path, data)
    app.result(json_result, str(path))
    open_browser(app, open_mode, path.resolve().as_uri())
    return 0


def gpus_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--gpus WHICH` to a command that starts a container; empty when the target's own number is meant."""
    return click.option(
        "--gpus",
        metavar="WHICH",
        default="",
        help="GPUs of the container: 2, 0,1, device=0, all, none [RLBOX_GPUS]; else the target's.",
    )(function)


def force_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--force` to a command that uses a target whose stack must fit together."""
    return click.option("--force", is_flag=True, help="Go on though the stack contradicts itself.")(function)


def sources_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--sources NAME` to a command that gets files from outside; empty when the target's own profile is meant."""
    return click.option(
        "--sources",
        metavar="NAME",
        default="",
        envvar="RLBOX_SOURCES",
        shell_complete=complete_sources,
        help="Where files come from: direct, cn, or a file of sources/ [RLBOX_SOURCES].",
    )(function)
