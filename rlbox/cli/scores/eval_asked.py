"""What the verbs of `rlbox eval` share: options of problems and sandboxes, results by path, failures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlbox.app import App
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.evaluation.problems import Problem
    from rlbox.evaluation.result import EvaluationResult, LocksDifferError
    from rlbox.evaluation.suites import Suite

Sets = list[tuple["Suite", list["Problem"]]]
_FOLDER = click.Path(path_type=Path)
_NEAR = 8
"""Results that are named where another was asked for, at most."""


def problem_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says where problems are, and what judges answers; the verb gets them as `where`."""
    for option in (
        click.option("--python", default="", metavar="FILE", help="Interpreter of the programs [rlbox's own]."),
        click.option("--sandbox-url", default="", metavar="URL", help="Code sandbox that is up [one is started here]."),
        click.option("--any-size", is_flag=True, help="Take sets of another size than their suite's."),
        click.option("--packages", type=_FOLDER, metavar="DIR", help="Folder of Python packages that carry problems."),
        click.option("--manifests", type=_FOLDER, metavar="DIR", help="Folder of manifests, which choose problems."),
        click.option("--problems", type=_FOLDER, metavar="DIR", help="Folder of the raw problem sets [here]."),
    ):
        function = option(function)
    return function


def own_suites(app: App) -> Path:
    """Return the folder of the project's own suites."""
    return app.project.folder / "suites"


def sets_of(app: App, names: tuple[str, ...], where: dict[str, Any]) -> Sets:
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
    problems = where["problems"] or Path()
    try:
        return load_suite_problems(
            names,
            problems,
            own=own_suites(app),
            packages=where["packages"],
            manifests=where["manifests"] or problems,
            python=where["python"],
            any_size=where["any_size"],
        )
    except ProblemError as error:
        step = _("name the folder of the raw problem sets with --problems DIR")
        raise SpecError(str(error), next_step=step if where["problems"] is None else "") from error


@contextlib.contextmanager
def judged_by(where: dict[str, Any], sets: Sets) -> Iterator[str]:
    """Yield the address of the sandbox that is named, or of one that lasts as long as the block."""
    from rlbox.evaluation.sandbox_client import start_sandbox

    if where["sandbox_url"]:
        yield where["sandbox_url"]
        return
    cpu_s = max(suite.limits.run_s for suite, __ in sets)
    memory_mb = max(suite.limits.memory_mb for suite, __ in sets)
    with start_sandbox(where["python"], cpu_s, memory_mb) as url:
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
