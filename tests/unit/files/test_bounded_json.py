"""JSON of anybody's making: read to plain values within bounds, or refused as no JSON; nothing else is ever raised."""

from __future__ import annotations

import json
import math

import pytest

from rlbox.files.rows import DEEPEST, json_rows, parse_json


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "[" * 200_000 + "]" * 200_000,
        '{"a":' * 200_000 + "1" + "}" * 200_000,
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        "1" * 5000,
        '{"loss": ' + "9" * 400 + "}",
        '{"loss": 0.' + "9" * 400_000 + "}",
        '"\\ud800"',
        '{"\\udfff": 1}'.replace("dfff", "dbff"),
        "",
        "{",
        b"\xff\xfe",
        b"\x00",
    ],
    ids=range(13),
)
def test_what_is_refused(text: bytes | str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (each in its own words)
        parse_json(text)
    assert list(json_rows([text, '{"next": 1}'])) == [{"next": 1}]


def test_what_is_read() -> None:
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert parse_json(deep) == json.loads(deep)
    wide = json.dumps([{"n": [n]} for n in range(1000)])
    assert parse_json(wide) == json.loads(wide)
    assert parse_json('"[[[[\\ud83d\\ude00"') == "[[[[\U0001f600"
    assert parse_json(b'\xef\xbb\xbf{"t": 1763000000123456789}') == {"t": 1763000000123456789}
    assert parse_json("[1e999, -2.5, NaN]")[0] == math.inf
