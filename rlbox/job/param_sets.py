"""The profiles of a job: sets of parameters that may include each other, and how several become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from rlbox.config.schema import suggest
from rlbox.i18n import _
from rlbox.job.param import Param, ParamName, Scalar, check_scalar, range_problem, settle

INCLUDE = "include"
"""The key of a profile that names one profile, or several, which lie under it."""


def _entry(value: Any) -> Any:
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return value
    return check_scalar(value)


Entry = Annotated[
    bool | int | float | str | tuple[str, ...],
    PlainValidator(_entry),
    WithJsonSchema({"type": ["boolean", "number", "string", "array"], "items": {"type": "string"}}),
]
ParamSet = dict[ParamName, Entry]
ParamSets = Mapping[str, Mapping[str, Scalar | tuple[str, ...]]]


def included(table: Mapping[str, Scalar | tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names of the profiles that a profile includes, in their order."""
    value = table.get(INCLUDE, ())
    return value if isinstance(value, tuple) else (str(value),)


def lay(profiles: ParamSets, names: Iterable[str]) -> dict[str, tuple[Scalar, str]]:
    """Return the parameters that the profiles `names` set: name to value and the profile it came from.

    The one rule: what a profile includes lies under it, in the order it is named, each profile once; of two that set
    the same parameter the later one holds.
    """
    order: dict[str, None] = {}
    for name in names:
        _visit(profiles, name, order)
    found: dict[str, tuple[Scalar, str]] = {}
    for name in order:
        for key, value in profiles[name].items():
            if key != INCLUDE and not isinstance(value, tuple):
                found[key] = (value, name)
    return found


def _visit(profiles: ParamSets, name: str, order: dict[str, None]) -> None:
    if name in order:
        return
    for under in included(profiles[name]):
        _visit(profiles, under, order)
    order[name] = None


def set_problems(where: str, table: Mapping[str, Scalar | tuple[str, ...]], params: Mapping[str, Param]) -> list[str]:
    """Return what is wrong with a set of parameters, each with its dotted path."""
    problems = []
    for name, value in table.items():
        path, param = f"{where}.{name}", params.get(name)
        if name == INCLUDE:
            continue
        if param is None:
            problems.append(
                _("{path}: not a parameter of the job{suggest}").format(path=path, suggest=suggest(name, list(params)))
            )
        elif isinstance(value, tuple):
            problems.append(_("{path}: must be one value (got {value!r})").format(path=path, value=list(value)))
        else:
            problems += [f"{path}: {problem}" for problem in _value_problems(name, param, value)]
    return problems


def _value_problems(name: str, param: Param, value: Scalar) -> list[str]:
    try:
        settled = settle(param, value)
        problem = range_problem(param, settled)
    except ValueError as error:
        return [str(error) + ("" if "(got " in str(error) else _(" (got {value!r})").format(value=value))]
    return (
        [_("parameter {name} is {problem}: {help}").format(name=name, problem=problem, help=param.help)]
        if problem
        else []
    )


def profile_problems(profiles: ParamSets, params: Mapping[str, Param]) -> list[str]:
    """Return what is wrong with the profiles of a job: unknown parameters, wrong values, circles of `include`."""
    problems = []
    for name, table in profiles.items():
        problems += set_problems(f"profiles.{name}", table, params)
        problems += [
            _("profiles.{name}.{include}: no profile {under!r}{suggest}").format(
                name=name, include=INCLUDE, under=under, suggest=suggest(under, list(profiles))
            )
            for under in included(table)
            if under not in profiles
        ]
        if circle := _circle(profiles, name, ()):
            problems.append(
                _("profiles.{name}.{include}: profiles include each other: {circle}").format(
                    name=name, include=INCLUDE, circle=" -> ".join(circle)
                )
            )
    return problems


def _circle(profiles: ParamSets, name: str, above: tuple[str, ...]) -> tuple[str, ...]:
    """Return the way from the first profile back to itself, or nothing; circles among others are told of by theirs."""
    if above and name == above[0]:
        return (*above, name)
    if name in above or name not in profiles:
        return ()
    return next((way for under in included(profiles[name]) if (way := _circle(profiles, under, (*above, name)))), ())
