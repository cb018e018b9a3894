"""The lines of a block are counted alike by StringZilla and by Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from rlbox.diagnose.act.read import line_counter

BLOCK = b"one\n\ntwo\r\n" * 999 + b"\x00\n\xff" + b"no end"
PLACES = [(0, len(BLOCK)), (0, 0), (3, 4), (4, 5), (5, 5000), (len(BLOCK) - 6, len(BLOCK))]
Counter = Callable[[bytes, int, int], int]


@pytest.fixture(params=["as installed", "Python alone"])
def counter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    if request.param == "Python alone":
        monkeypatch.setitem(sys.modules, "stringzilla", None)
    line_counter.cache_clear()
    yield line_counter()
    line_counter.cache_clear()


@pytest.mark.parametrize(("begin", "end"), PLACES)
def test_as_many_as_there_are(counter: Counter, begin: int, end: int) -> None:
    assert counter(BLOCK, begin, end) == BLOCK[begin:end].count(b"\n")
