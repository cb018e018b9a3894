"""Turn pydantic's findings into rlbox's: all at once, dotted path, suggestion for a near miss."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rlbox.errors import SpecError

Model = TypeVar("Model", bound=BaseModel)


def check_spec(model: type[Model], data: Mapping[str, Any], where: str) -> Model:
    """Return `data` as a `model`.

    Keys that begin with `x-` are the user's own and are ignored at the top level.

    Raises
    ------
    SpecError
        One line per problem: `<where>: <dotted path>: <message>`.
    """
    try:
        return model.model_validate({key: value for key, value in data.items() if not key.startswith("x-")})
    except ValidationError as error:
        problems = sorted(_describe(model, data, dict(item)) for item in error.errors(include_url=False))
        lines = "\n".join(f"  {where}: {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise SpecError(
            f"{where}: {count}\n{lines}",
            next_step=f"correct the file; `rlbox show --schema {model.__name__.lower()}` prints every key",
        ) from error


def _describe(model: type[BaseModel], data: Mapping[str, Any], item: dict[str, Any]) -> str:
    loc: tuple[str | int, ...] = item["loc"]
    path = _dotted(loc) or model.__name__.lower()
    match item["type"]:
        case "extra_forbidden":
            return f"{path}: unknown key{suggest(str(loc[-1]), _keys_at(model, loc[:-1]))}"
        case "missing":
            return f"{path}: missing"
        case "value_error":
            return f"{path}: {item['ctx']['error']}"
        case "literal_error":
            given = item["input"]
            return f"{path}: {given!r} is not one of {item['ctx']['expected']}"
        case _:
            return f"{path}: {item['msg'][0].lower()}{item['msg'][1:]} (got {item['input']!r:.60})"


def _dotted(loc: tuple[str | int, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _keys_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in loc:
        node = _resolve(schema, node)
        node = node["items"] if isinstance(part, int) else node.get("properties", {}).get(part, {})
        if not node:
            return []
    return list(_resolve(schema, node).get("properties", {}))


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    for option in (node, *node.get("anyOf", ())):
        if "$ref" in option:
            found: dict[str, Any] = schema["$defs"][option["$ref"].rsplit("/", 1)[1]]
            return found
    return node


def suggest(given: str, known: list[str]) -> str:
    """Return ` (did you mean 'X'?)` for the nearest of `known`, or nothing."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
