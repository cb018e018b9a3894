"""Read what others wrote (JSON, TOML, numbers) within bounds: values that can be walked, counted with and written.

Python's own readers take numbers of any length (in time that grows with its square), nest until the stack ends, keep
the last of two equal keys, and return halves of characters that no file can be written with.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from typing import Any

from rlbox.i18n import _

DEEPEST = 64
"""Levels of lists and tables; a record of rlbox has less than ten, and whoever walks one calls itself per level."""

LONGEST_NUMBER = 100
"""Characters of a number; a time in ns has 19. Turning digits into an integer takes the square of their count."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_KEY}\.[ \t]*){{{DEEPEST}}}")
"""A dotted key that nests too deep; the parser's time grows with the square of its parts."""

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def parse_json(text: bytes | str, *, allow_surrogates: bool = False) -> Any:
    """Return the value that a JSON text holds; how long the text may be is for who reads it to bound.

    `NaN` and `Infinity` are numbers, as Python writes them.

    Raises
    ------
    ValueError
        It is no JSON, no UTF-8, deeper than `DEEPEST`, has a number of more than `LONGEST_NUMBER` characters, the same
        key twice in an object, or one half of a surrogate pair, which no file can be written with, unless it may.
    """
    try:
        words = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = _DECODER.decode(words)
    except RecursionError as error:
        raise ValueError(_("JSON deeper than {deepest} levels").format(deepest=DEEPEST)) from error
    if words.count("[") + words.count("{") > DEEPEST:
        _check_depth(value, "JSON")
    if not allow_surrogates and _SURROGATE.search(words):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def toml_table(text: str) -> dict[str, Any]:
    """Return the table that a TOML text holds.

    Raises
    ------
    ValueError
        It is no TOML, deeper than `DEEPEST`, or holds a number that Python does not convert; the message ends with line
        and column where the parser knows them.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # the same parser, for Python 3.10

    if _LONG_KEY.search(text):
        raise ValueError(_("TOML deeper than {deepest} levels").format(deepest=DEEPEST))
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_("TOML deeper than {deepest} levels").format(deepest=DEEPEST)) from error
    _check_depth(found, "TOML", long_numbers=True)
    return found


def whole_number(text: str | bytes, *, digits: int = 18) -> int | None:
    """Return a number written in ASCII digits alone, at most so many; None for anything else."""
    return int(text) if 0 < len(text) <= digits and text.isascii() and text.isdigit() else None


def decimal(text: str) -> float | None:
    """Return a number as programs write it (`2`, `-0.5`, `1e-05`); None for anything else, or one that is too long.

    It may be infinite: `1e999` is.
    """
    return float(text) if len(text) <= LONGEST_NUMBER and _NUMBER.fullmatch(text) else None


def finite_number(value: object) -> float | None:
    """Return a number of a parsed document as a decimal; None for anything else, one that is infinite, or too large."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _check_depth(value: Any, what: str, *, long_numbers: bool = False) -> None:
    """Refuse what is too deep; `long_numbers`: a parser let numbers of any length through, as TOML has in 0x..."""
    level, depth = [value], 0
    while level:
        if long_numbers and any(isinstance(each, int) and each.bit_length() > 4 * LONGEST_NUMBER for each in level):
            raise ValueError(
                _("{what} with a number of more than {longest_number} characters").format(
                    what=what, longest_number=LONGEST_NUMBER
                )
            )
        held = [each for each in level if isinstance(each, (dict, list))]
        depth += bool(held)
        if depth > DEEPEST:
            raise ValueError(_("{what} deeper than {deepest} levels").format(what=what, deepest=DEEPEST))
        level = [inner for each in held for inner in _inside(each)]


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(_("a number of {count} characters").format(count=len(digits)))
    return int(digits)


def _real(digits: str) -> float:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(_("a number of {count} characters").format(count=len(digits)))
    return float(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(_("an object with the same key twice"))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole, parse_float=_real)
