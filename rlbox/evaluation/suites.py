"""Find suites by name: a project's own before those that rlbox brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from rlbox.evaluation.problem import EvalProblem, ProblemError
from rlbox.evaluation.problems import load_problems
from rlbox.evaluation.suite import Suite
from rlbox.foreign import toml_table
from rlbox.i18n import _

SHIPPED = Path(__file__).resolve().parent / "suites"


def load_suites(names: Sequence[str], own: Path | None = None) -> list[Suite]:
    """Return suites by name or path of a TOML file; `ProblemError` where one is missing or none."""
    return [_load(name, own) for name in names]


def suite_names(own: Path | None = None) -> list[str]:
    """Return the names of all suites that there are."""
    folders = [SHIPPED, *([own] if own else [])]
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def load_sets(
    names: Sequence[str],
    problems: Path,
    *,
    own: Path | None = None,
    packages: Path | None = None,
    manifests: Path = Path(),
    python: str = "",
    any_size: bool = False,
) -> list[tuple[Suite, list[EvalProblem]]]:
    """Return suites by name with their problems; see `load_problems`."""
    return [
        (suite, load_problems(suite, problems, packages, manifests, python, any_size=any_size))
        for suite in load_suites(names, own)
    ]


def _load(name: str, own: Path | None) -> Suite:
    places = (
        [Path(name)] if name.endswith(".toml") else [folder / f"{name}.toml" for folder in (own, SHIPPED) if folder]
    )
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise ProblemError(
            _("there is no suite {name!r}; there are {suite_names}").format(
                name=name, suite_names=", ".join(suite_names(own))
            )
        )
    try:
        return Suite.model_validate({"name": path.stem, **toml_table(path.read_text("utf-8"))})
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors())
        raise ProblemError(f"{path}: {told}") from error
    except ValueError as error:
        raise ProblemError(_("{path}: {error}").format(path=path, error=error)) from error
