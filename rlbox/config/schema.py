"""Base model and field types of all specs, and validation errors in rlbox's words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WrapValidator,
)

from rlbox.config.pattern import validate_selective_re2_pattern
from rlbox.errors import SpecError
from rlbox.i18n import EnglishMessage, _, join


def _one_line(text: str) -> str:
    if wrong := re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError(
            _("holds the control character {wrong!r}, which no line of a Dockerfile can").format(wrong=wrong.group())
        )
    return text


NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\s:]*$")]


AptPackage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]


SingleLine = Annotated[str, AfterValidator(_one_line)]
TranslatedText = Annotated[
    str, WrapValidator(lambda text, check: text if isinstance(text, EnglishMessage) else _(check(text)))
]
"""A text of a spec, shown in the reader's language if rlbox has a translation; pydantic would make a message a str."""


def are_patterns_checked(info: ValidationInfo) -> bool:
    """Return whether patterns are to be compiled: those of shipped fixes take a second, and `make test` did it."""
    return info.context != "shipped"


def _pattern(text: str, info: ValidationInfo) -> str:
    return validate_selective_re2_pattern(text) if are_patterns_checked(info) else text


PatternText = Annotated[str, AfterValidator(_pattern)]
OptionalPattern = Annotated[str, AfterValidator(lambda text, info: text and _pattern(text, info))]
"""A pattern of RE2, or an empty text for none."""


# A number of the inventory of demands.


class SpecModel(BaseModel):
    """Base of every spec model: immutable, and a key nobody declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)
_SHOWN = 60  # characters of a wrong value that a message repeats


# What a value must be, in the words of TOML.
_MUST_BE = {
    "bool_type": _("true or false"),
    "date_type": _("a date without quotes"),
    "dict_type": _("a table"),
    "finite_number": _("a finite number"),
    "float_type": _("a number"),
    "int_type": _("an integer"),
    "model_type": _("a table"),
    "string_type": _("text"),
    "tuple_type": _("a list"),
}


def validate_spec(
    model: type[Model],
    data: Mapping[str, Any],
    source_name: str,
    extra_known_keys: tuple[str, ...] = (),
    *,
    is_shipped: bool = False,
) -> Model:
    """Return `data` as a `model`; types must be what they say, `"1"` is no number.

    Keys that begin with `x-` are the user's own and are ignored at the top level.

    `extra_known_keys`: Top-level keys that the caller has taken out of `data` already, offered for a near miss.
    `is_shipped`: `data` is of a file of rlbox: its patterns are not compiled.
    Raises SpecError: one line per problem: `<where>: <dotted path>: <message>`.
    """
    try:
        return model.model_validate(
            {key: _tuples(value) for key, value in data.items() if not key.startswith("x-")},
            strict=True,
            context="shipped" if is_shipped else None,
        )
    except ValidationError as error:
        items = [dict(item) for item in error.errors(include_url=False)]
        problems = sorted({line for item in items for line in _describe(model, item, extra_known_keys)})
        lines = join("\n", (join("", ("  ", source_name, ": ", problem)) for problem in problems))
        count = _("1 problem") if len(problems) == 1 else _("{count} problems").format(count=len(problems))
        raise SpecError(
            _("{where}: {count}\n{lines}").format(where=source_name, count=count, lines=lines),
            next_step=_("correct the file; `rlbox show --schema {name}` prints every key").format(
                name=model.__name__.lower()
            ),
        ) from error


def _tuples(value: Any) -> Any:
    """Return `value` with every list as a tuple, which is what a strict model takes for one."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _describe(model: type[BaseModel], item: dict[str, Any], known: tuple[str, ...]) -> list[str]:
    """Return one finding of pydantic as lines; a check of the whole spec names its own paths, one a line."""
    loc: tuple[str | int, ...] = item["loc"]
    if item["type"] == "value_error" and isinstance(item["ctx"]["error"], ValidationProblems):
        return [join(".", (_dotted(loc), line)) if loc else line for line in item["ctx"]["error"].lines]
    if item["type"] == "value_error" and not loc:
        return str(item["ctx"]["error"]).splitlines()
    if item["type"] == "too_short" and item["input"]:  # said because its items are wrong, which is said as well
        return []
    if item["type"] == "extra_forbidden":
        return [
            _("{dotted}: unknown key{suggest}").format(
                dotted=_dotted(loc), suggest=did_you_mean_hint(str(loc[-1]), _keys_at(model, loc[:-1], known))
            )
        ]
    if loc[-1] == "[key]":
        return [
            _("{dotted}: the name does not fit {pattern}").format(
                dotted=_dotted(loc[:-1]), pattern=item["ctx"]["pattern"]
            )
        ]
    return [join(": ", (_dotted(loc), _problem(item)))]


def _problem(item: dict[str, Any]) -> str:
    given, facts = item["input"], item.get("ctx", {})
    match item["type"]:
        case "missing":
            return _("missing")
        case "value_error":
            return str(facts["error"])
        case "literal_error":
            return _("{given!r} is not one of {expected}").format(given=given, expected=facts["expected"])
        case "string_pattern_mismatch":
            return _("{given!r} does not fit {pattern}").format(given=given, pattern=facts["pattern"])
        case "too_short" | "string_too_short":
            if facts["min_length"] == 1:
                return _("must not be empty")
            return _("must have at least {count} characters or items").format(count=facts["min_length"])
        case kind if kind in _MUST_BE:
            return _("must be {must_be} (got {given})").format(must_be=_MUST_BE[kind], given=_given(given))
        case _:
            return _("{msg}{msg2} (got {given})").format(
                msg=item["msg"][0].lower(), msg2=item["msg"][1:], given=_given(given)
            )


def _given(value: Any) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _dotted(loc: tuple[str | int, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _keys_at(model: type[BaseModel], loc: tuple[str | int, ...], known: tuple[str, ...]) -> list[str]:
    """Return the keys that the table at `loc` may have; `name` at the top is the file's own and no key."""
    schema = model.model_json_schema()
    if not loc:
        return [*(key for key in schema["properties"] if key != "name"), *known]
    node: dict[str, Any] = schema
    for part in loc:
        node = _below(_resolve(schema, node), part)
    return list(_resolve(schema, node).get("properties", {}))


def _below(node: dict[str, Any], part: str | int) -> dict[str, Any]:
    if isinstance(part, int):
        found: dict[str, Any] = node.get("items", {})
        return found
    named = node.get("properties", {}).get(part)
    others = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    return named or next((other for other in others if isinstance(other, dict)), {})


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    for option in (node, *node.get("anyOf", ())):
        if "$ref" in option:
            found: dict[str, Any] = schema["$defs"][option["$ref"].rsplit("/", 1)[1]]
            return found
    return node


def did_you_mean_hint(unknown_name: str, known_names: list[str]) -> str:
    near = difflib.get_close_matches(unknown_name, known_names, n=1, cutoff=0.6)
    return _(" (did you mean '{near}'?)").format(near=near[0]) if near else ""


class ValidationProblems(ValueError):
    """Raised by a validator; each of `lines` is `KEY: MESSAGE`, the key relative to the table that was validated."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__(join("\n", self.lines))
