"""Read what others wrote (JSON, TOML, numbers): values that can be walked, counted with and written.

Python's own readers keep the last of two equal keys, nest until the stack ends, and return halves of characters that no
file can be written with.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any

from rlbox.i18n import _

DEEPEST = 64
"""Levels of lists and tables; a record of rlbox has less than ten, and functions that walk one are recursive."""
_MAX_DECIMAL_CHARACTERS = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def parse_untrusted_json(text: bytes | str, *, allow_surrogates: bool = False) -> Any:
    """Return the value that a JSON text holds; `NaN` and `Infinity` are numbers, as Python writes them.

    Raises
    ------
    ValueError
        It is no JSON, no UTF-8, deeper than `DEEPEST`, has the same key twice in an object, or one half of a surrogate
        pair, which no file can be written with, unless it may.
    """
    words = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        value = _DECODER.decode(words)
    except RecursionError as error:
        raise ValueError(_("JSON deeper than {deepest} levels").format(deepest=DEEPEST)) from error
    if words.count("[") + words.count("{") > DEEPEST:
        _check_depth(value, "JSON")
    if not allow_surrogates and _SURROGATE.search(words):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def parse_untrusted_toml(text: str) -> dict[str, Any]:
    """Return the table that a TOML text holds.

    Raises
    ------
    ValueError
        It is no TOML, or deeper than `DEEPEST`; the message ends with line and column where the parser knows them.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # the same parser, for Python 3.10

    try:
        table: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_("TOML deeper than {deepest} levels").format(deepest=DEEPEST)) from error
    _check_depth(table, "TOML")
    return table


def parse_digits(text: str | bytes, *, max_digits: int = 18) -> int | None:
    """Return a number written in ASCII digits alone, at most so many; None for anything else."""
    return int(text) if 0 < len(text) <= max_digits and text.isascii() and text.isdigit() else None


def parse_decimal_number(text: str) -> float | None:
    """Return a number as programs write it (`2`, `-0.5`, `1e-05`); None for anything else, or one that is too long.

    It may be infinite: `1e999` is.
    """
    return float(text) if len(text) <= _MAX_DECIMAL_CHARACTERS and _NUMBER.fullmatch(text) else None


def number_to_finite_float(value: object) -> float | None:
    """Return a number of a parsed document as a decimal; None for anything else, one that is infinite, or too large."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _check_depth(value: Any, what: str, levels: int = DEEPEST) -> None:
    if not isinstance(value, (dict, list)):
        return
    if not levels:
        raise ValueError(_("{what} deeper than {deepest} levels").format(what=what, deepest=DEEPEST))
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, what, levels - 1)


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError(_("an object with the same key twice"))
    return table


_DECODER = json.JSONDecoder(object_pairs_hook=_build_object)
