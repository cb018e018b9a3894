"""JSON that anybody may have written: objects of records and lines of logs, read within bounds.

What a program of a run wrote is read by rlbox in many places. Here is the one way: whatever the bytes are, it returns
plain values that can be walked, counted with and written again, or it raises `ValueError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

DEEPEST = 64
"""Levels of lists and objects; a record of rlbox has less than ten, and whoever walks one calls itself per level."""

LONGEST_NUMBER = 100
"""Characters of a number; a time in ns has 19. Turning digits into an integer takes the square of their count."""

_LONE = re.compile(r"\\u[dD][89abAB]")


def parse_json(text: bytes | str) -> Any:
    """Return the value that a JSON text holds; how long the text may be is for who reads it to bound.

    Raises
    ------
    ValueError
        It is no JSON, no UTF-8, deeper than `DEEPEST`, has a number of more than `LONGEST_NUMBER` characters, or one
        half of a surrogate pair, which no file can be written with.
    """
    try:
        words = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = _DECODER.decode(words)
    except RecursionError as error:
        raise ValueError(f"JSON deeper than {DEEPEST} levels") from error
    if words.count("[") + words.count("{") > DEEPEST:
        _check_depth(value)
    if _LONE.search(words):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def json_rows(lines: Iterable[bytes | str]) -> Iterator[dict[str, Any]]:
    """Return the objects among `lines`; torn lines, as a kill leaves them, are passed over."""
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while held := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"JSON deeper than {DEEPEST} levels")
        level = [inner for each in held for inner in (each.values() if isinstance(each, dict) else each)]


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} characters")
    return int(digits)


def _real(digits: str) -> float:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} characters")
    return float(digits)


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_real)
