"""A parameter of a job and the profiles that set several: type, unit, range, choices, includes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainValidator, StringConstraints, WithJsonSchema

from rlbox.config.schema import SpecModel, TranslatedText, did_you_mean_hint
from rlbox.config.units import PARAMETER_UNITS, Unit, convert_from_base_unit, parse_to_base_unit, repr_without_exponent
from rlbox.i18n import _
from rlbox.job.names import ProblemOrEmpty

ParamName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
ParamType = Literal["int", "float", "str", "bool", "duration", "size", "fraction"]
Scalar = bool | int | float | str

_MUST_BE = {"int": _("an integer"), "float": _("a number"), "str": _("text"), "bool": _("true or false")}
_DEFAULT_UNITS: dict[str, str] = {"duration": "seconds", "size": "bytes", "fraction": "fraction"}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
# What guides write where a value belongs; `<think>` and the like are values.
_PLACEHOLDER = re.compile(r"/path/to\b|/your/path\b|<(?:port|host|your)\b[^<>]*>|<YOUR_[^<>]*>|\bCHANGE_?ME\b", re.I)


def _require_scalar(value: Any) -> Any:
    if not isinstance(value, (bool, int, float, str)):
        shown = list(value) if isinstance(value, tuple) else value
        raise ValueError(_("must be a number, text, true or false (got {shown!r})").format(shown=shown))
    return value


Value = Annotated[bool | int | float | str, BeforeValidator(_require_scalar)]


class Param(SpecModel):
    """A value that the user may change with `--set NAME=VALUE`."""

    default: Value | None = Field(None, description="default value; absent only if required")
    help: TranslatedText = Field(description="one-line description of the parameter")
    type: ParamType | None = Field(None, description="type of the value; absent: from unit, default or first choice")
    unit: Unit | None = Field(None, description="unit that the command expects; you write values with any unit")
    required: bool = Field(False, description="a profile or --set must set it; no default")
    choices: tuple[Value, ...] = Field((), description="allowed values; empty: any")
    at_least: Value | None = Field(None, description="smallest allowed value; absent: no limit")
    at_most: Value | None = Field(None, description="largest allowed value; absent: no limit")
    true: str = Field("true", description="argument for true; empty: removed from the command")
    false: str = Field("false", description="argument for false; empty: removed from the command")

    @property
    def effective_type(self) -> ParamType:
        if self.type:
            return self.type
        if self.unit:
            return PARAMETER_UNITS[self.unit][0]
        names: dict[type, ParamType] = {bool: "bool", int: "int", float: "float"}
        known = next((value for value in (self.default, *self.choices) if value is not None), "")
        return names.get(type(known), "str")

    @property
    def argument_unit(self) -> str:
        """The unit that the command gets it in; empty for a value without one."""
        return self.unit or _DEFAULT_UNITS.get(self.effective_type, "")


def convert_and_check_except_bounds(param: Param, value: Scalar) -> Scalar:
    """Return `value` as the command gets it: a number with a unit becomes one in the unit that the command wants.

    Raises ValueError: it has the wrong type, is none of the choices, lies out of the range, or is a placeholder of a
      guide.
    """
    settled = _typed(param, value)
    if param.required and settled == "":
        raise ValueError(_("must not be empty"))
    if param.choices and settled not in [_typed(param, choice) for choice in param.choices]:
        shown = [format_scalar(choice) for choice in param.choices]
        raise ValueError(
            _("must be one of {shown}{suggest}").format(
                shown=", ".join(shown), suggest=did_you_mean_hint(format_scalar(value), shown)
            )
        )
    if problem := explain_if_example_placeholder(value):
        raise ValueError(problem)
    return settled


def find_bounds_problem(param: Param, in_unit: Scalar) -> ProblemOrEmpty:
    if isinstance(in_unit, (str, bool)):
        return ""
    low, high = (None if bound is None else _typed(param, bound) for bound in (param.at_least, param.at_most))
    if (low is None or in_unit >= low) and (high is None or in_unit <= high):  # type: ignore[operator]
        return ""
    unit = f" {param.argument_unit}" if param.argument_unit not in ("", "fraction") else ""
    found = f"{repr_without_exponent(in_unit)}{unit}"
    least, most = ("" if bound is None else format_scalar(bound) for bound in (param.at_least, param.at_most))
    if not most:
        return _("{found}, and must be at least {least}").format(found=found, least=least)
    if not least:
        return _("{found}, and must be at most {most}").format(found=found, most=most)
    return _("{found}, and must be from {least} to {most}").format(found=found, least=least, most=most)


def parse_param_text_leaving_units(param: Param, text: str) -> Scalar:
    """Raises `ValueError`."""
    kind = param.effective_type
    if kind == "bool":
        if text.lower() not in _BOOLS:
            raise ValueError(_("must be {must_be}").format(must_be=_MUST_BE[kind]))
        return _BOOLS[text.lower()]
    if kind not in ("int", "float"):
        return text
    try:
        value: int | float = int(text) if kind == "int" else float(text)
    except ValueError as error:
        raise ValueError(_("must be {must_be}").format(must_be=_MUST_BE[kind])) from error
    if not math.isfinite(value):
        raise ValueError(_("must be {must_be}").format(must_be=_MUST_BE[kind]))
    return value


def format_argument_without_unit(param: Param, in_unit: Scalar) -> str:
    if isinstance(in_unit, bool):
        return param.true if in_unit else param.false
    return repr_without_exponent(in_unit) if param.argument_unit and not isinstance(in_unit, str) else str(in_unit)


def explain_if_example_placeholder(value: Scalar) -> ProblemOrEmpty:
    found = _PLACEHOLDER.search(value) if isinstance(value, str) else None
    return (
        _("{found!r} is a placeholder of a guide: write the value that belongs there").format(found=found.group())
        if found
        else ""
    )


def format_scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value).removesuffix(".0")


def _typed(param: Param, value: Scalar) -> Scalar:
    kind = param.effective_type
    match kind:
        case "bool":
            fits = isinstance(value, bool)
        case "int":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "float":
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        case "str":
            fits = isinstance(value, str)
        case _:
            if isinstance(value, bool):
                raise ValueError(_("must be a {kind} with its unit").format(kind=kind))
            quantity: Fraction = parse_to_base_unit(kind, value)
            return convert_from_base_unit(quantity, param.argument_unit)
    if not fits:
        raise ValueError(_("must be {must_be}").format(must_be=_MUST_BE[kind]))
    return float(value) if kind == "float" else value


def find_param_declaration_problems(name: str, param: Param) -> list[str]:
    where = f"params.{name}"
    if param.unit and param.type and param.type != PARAMETER_UNITS[param.unit][0]:
        return [
            _("{where}.unit: {unit} is not a unit of type {type}").format(where=where, unit=param.unit, type=param.type)
        ]
    problems = []
    if param.required == (param.default is not None):
        problems.append(f"{where}.default: {_('a required parameter has none') if param.required else 'missing'}")
    if param.required and not (param.default is not None or param.type or param.unit or param.choices):
        problems.append(_("{where}.type: missing, for there is no default to tell it").format(where=where))
    bounds = {key: getattr(param, key) for key in ("at_least", "at_most") if getattr(param, key) is not None}
    for key, value in {**bounds, **{f"choices[{n}]": choice for n, choice in enumerate(param.choices)}}.items():
        if key in bounds and param.effective_type in ("str", "bool"):
            must_be = _MUST_BE[param.effective_type]
            problems.append(_("{where}.{key}: {must_be} has no range").format(where=where, key=key, must_be=must_be))
            continue
        try:
            _typed(param, value)
        except ValueError as error:
            problems.append(f"{where}.{key}: {_with_value(error, value)}")
    if param.default is not None and not problems:  # it is judged by a declaration that holds
        problems += [f"{where}.default: {problem}" for problem in _value_problems(name, param, param.default)]
    return problems


def _with_value(error: ValueError, value: Scalar) -> str:
    return str(error) + ("" if "(got " in str(error) else _(" (got {value!r})").format(value=value))


INCLUDE_KEY = "include"
"""The key of a profile that names one profile, or several, which lie under it."""


def _entry(value: Any) -> Any:
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return value
    return _require_scalar(value)


ProfileEntry = Annotated[
    bool | int | float | str | tuple[str, ...],
    PlainValidator(_entry),
    WithJsonSchema({"type": ["boolean", "number", "string", "array"], "items": {"type": "string"}}),
]
ParamSet = dict[ParamName, ProfileEntry]
ParamSets = Mapping[str, Mapping[str, Scalar | tuple[str, ...]]]


def get_included_profile_names(profile: Mapping[str, Scalar | tuple[str, ...]]) -> tuple[str, ...]:
    value = profile.get(INCLUDE_KEY, ())
    return value if isinstance(value, tuple) else (str(value),)


class ProfileValue(NamedTuple):
    value: Scalar
    profile: str


def merge_profiles(profiles: ParamSets, names: Iterable[str]) -> dict[str, ProfileValue]:
    """Return the parameters that the profiles `names` set: name to value and the profile it came from.

    The one rule: what a profile includes lies under it, in the order it is named, each profile once; of two that set
    the same parameter the later one holds.
    """
    order: dict[str, None] = {}
    for name in names:
        _visit(profiles, name, order, ())
    found: dict[str, ProfileValue] = {}
    for name in order:
        for key, value in profiles[name].items():
            if key != INCLUDE_KEY and not isinstance(value, tuple):
                found[key] = ProfileValue(value, name)
    return found


def _visit(profiles: ParamSets, name: str, order: dict[str, None], above: tuple[str, ...]) -> None:
    if name in order or name in above:
        return
    for under in get_included_profile_names(profiles[name]):
        _visit(profiles, under, order, (*above, name))
    order[name] = None


def find_param_value_problems(
    path_for_errors: str, value_by_param: Mapping[str, Scalar | tuple[str, ...]], params: Mapping[str, Param]
) -> list[str]:
    problems = []
    for name, value in value_by_param.items():
        path, param = f"{path_for_errors}.{name}", params.get(name)
        if name == INCLUDE_KEY:
            continue
        if param is None:
            problems.append(
                _("{path}: not a parameter of the job{suggest}").format(
                    path=path, suggest=did_you_mean_hint(name, list(params))
                )
            )
        elif isinstance(value, tuple):
            problems.append(_("{path}: must be one value (got {value!r})").format(path=path, value=list(value)))
        else:
            problems += [f"{path}: {problem}" for problem in _value_problems(name, param, value)]
    return problems


def _value_problems(name: str, param: Param, value: Scalar) -> list[str]:
    try:
        problem = find_bounds_problem(param, convert_and_check_except_bounds(param, value))
    except ValueError as error:
        return [_with_value(error, value)]
    if not problem:
        return []
    return [_("parameter {name} is {problem}: {help}").format(name=name, problem=problem, help=param.help)]


def find_profile_problems_except_cycles(profiles: ParamSets, params: Mapping[str, Param]) -> list[str]:
    problems = []
    for name, table in profiles.items():
        problems += find_param_value_problems(f"profiles.{name}", table, params)
        problems += [
            _("profiles.{name}.{include}: no profile {under!r}{suggest}").format(
                name=name, include=INCLUDE_KEY, under=under, suggest=did_you_mean_hint(under, list(profiles))
            )
            for under in get_included_profile_names(table)
            if under not in profiles
        ]
    return problems
