"""What others wrote is read within bounds: no hang, no traceback, no number that is none."""

from __future__ import annotations

import json
import math
import time

import pytest

from rlbox.foreign import DEEPEST, parse_decimal_number, parse_digits, parse_untrusted_json, parse_untrusted_toml
from rlbox.system.json_files import parse_valid_json_objects

HOSTILE = {
    "deep list": "[" * 200_000,
    "deep list, whole": "[" * 200_000 + "]" * 200_000,
    "deep object": '{"a":' * 200_000,
    "just too deep": "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    "long number": "1" * 1_000_000,
    "same key twice": '{"loss": 1, "loss": 2}',
    "open string": '"' + "\\" * 999_999,
    "nothing": "",
    "NUL bytes": "\0\0\0",
    "first half of a character": '"\\ud800"',
    "second half of a character": '{"\\udfff": 1}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.slow
def test_what_is_beyond_the_bounds_is_wrong_at_once(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError):  # noqa: PT011 (each in its own words)
        parse_untrusted_json(text)
    with pytest.raises(ValueError):  # noqa: PT011 (each in its own words)
        parse_untrusted_json(text.encode())
    assert time.process_time() - begun < 1


def test_bytes_that_are_no_utf8_are_wrong() -> None:
    for data in (b'{"a": "\xff"}', b"\xff\xfe{\0}\0"):
        with pytest.raises(ValueError, match="codec"):
            parse_untrusted_json(data)


def test_what_programs_write_is_read() -> None:
    deep = "[" * DEEPEST + "1" + "]" * DEEPEST
    assert parse_untrusted_json(deep) == json.loads(deep)
    assert math.isnan(parse_untrusted_json('{"loss": NaN}')["loss"])
    many = json.dumps([{"a [{": [1, 2.5, 'x"]}']}] * 500)
    assert parse_untrusted_json(many) == json.loads(many)
    assert parse_untrusted_json('"[[[[\\ud83d\\ude00"') == "[[[[\U0001f600"
    assert parse_untrusted_json(b'\xef\xbb\xbf{"t": 1763000000123456789}') == {"t": 1763000000123456789}
    assert list(parse_valid_json_objects([b'{"a": 1}', b"\n", b"[1]", b'{"a', b"\xff"])) == [{"a": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a." * 100 + "b = 1",
        "a = " + "1" * 100_000,
        "a = \0",
        "a = 1\na = 2",
    ],
    ids=["deep", "dotted", "long number", "NUL", "twice"],
)
@pytest.mark.slow
def test_toml_beyond_the_bounds_is_wrong(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError):  # noqa: PT011 (each in its own words)
        parse_untrusted_toml(text)
    assert time.process_time() - began < 1


def test_toml_as_people_write_it_is_read() -> None:
    text = "a = [\n" + "1.5, 2.5, " * 50 + '\n]\nb = """' + "One sentence. Another one. " * 50 + '"""\nc.d.e = 0xff'
    assert parse_untrusted_toml(text)["c"] == {"d": {"e": 255}}


def test_numbers_are_ascii_digits_and_not_too_many() -> None:
    assert [parse_digits(text) for text in ("7", b"12", "", "²", "١", "-1", "1_0", "9" * 19)] == [7, 12] + [None] * 6
    assert [parse_decimal_number(text) for text in ("2", "-0.5", "1e-05", ".5")] == [2, -0.5, 1e-05, 0.5]
    assert [parse_decimal_number(text) for text in ("1_0", "١", "nan", "inf", "1e", " 1", "1" * 400)] == [None] * 7
    assert parse_decimal_number("1e999") == math.inf
