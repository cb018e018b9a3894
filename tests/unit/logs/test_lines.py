"""Lines of live logs: cut anywhere, coloured, rewritten by progress bars, not always UTF-8."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlbox.logs.lines import (
    LINE_LIMIT,
    LineSplitter,
    count_omitted_ray_repeats,
    list_variants_without_ray_rank_and_bar,
    strip_ansi_escapes,
    strip_ray_prefix_and_repeat,
)

PIECES = st.sampled_from(
    [b"a", b"step 1", b"\n", b"\r", b"\r\n", b" ", b"\x1b[31m", b"\x1b[K", b"\x1b", b"\xe4\xbd", b"\xa0", b"\xff",
     b"x" * 70000]
)  # fmt: skip


def cut(*chunks: bytes) -> list[str]:
    cutter = LineSplitter()
    lines = [line for chunk in chunks for line in cutter.feed(chunk)] + [*cutter.close()]
    assert cutter.number == len(lines)
    return lines


@given(st.lists(PIECES, max_size=30).map(b"".join), st.data())
def test_chunks_do_not_matter(data: bytes, draw: st.DataObject) -> None:
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=8).map(sorted))
    bounds = [0, *cuts, len(data)]
    assert cut(*(data[a:b] for a, b in pairwise(bounds))) == cut(data)


def naive(data: bytes) -> list[str]:
    """Return the lines as `LineSplitter` promises them, in the simplest way."""
    lines = data.split(b"\n")
    lines = lines if lines[-1].strip(b"\r") else lines[:-1]
    shown = []
    for line in lines:
        states = [state[:LINE_LIMIT] for state in line.split(b"\r")]
        seen = [state for state in states if strip_ansi_escapes(state.decode("latin-1")).strip(" \t\n\r\x0b\x0c")]
        blank = [state for state in states if state]
        last = seen[-1] if seen else blank[-1] if blank else b""
        shown.append(strip_ansi_escapes(last.decode("utf-8", "replace")))
    return shown


@given(st.lists(PIECES.filter(lambda piece: piece not in (b"\x1b", b"\xe4\xbd", b"\xa0")), max_size=20).map(b"".join))
def test_lines_are_those_of_the_simplest_reading(data: bytes) -> None:
    assert cut(data) == naive(data)


def test_overwritten_states_are_told_at_once() -> None:
    cutter = LineSplitter()
    assert cutter.feed(b"a\n 1%\r 2%\r").overwritten_states == ((1, b" 1%"),)
    assert cutter.feed(b" 3%").overwritten_states == ()
    last = cutter.feed(b"\r \r\nnext\n")
    assert (last.overwritten_states, list(last), cutter.number) == (((0, b" 2%"),), [" 3%", "next"], 3)


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("plain", ["plain"]),
        ("(W pid=1) done", ["(W pid=1) done", "done"]),
        ("(W pid=1) a(W pid=2) b", ["(W pid=1) a(W pid=2) b", "a", "b", "a(W pid=2) b"]),
        ("[rank3]: Traceback", ["[rank3]: Traceback", "Traceback"]),
        ("[1,0]<stderr>:Error", ["[1,0]<stderr>:Error", "Error"]),
        (" 50%|##  | 1/2 [00:01<00:01, 1it/s]Error", [" 50%|##  | 1/2 [00:01<00:01, 1it/s]Error", "Error"]),
    ],
)
def test_views(text: str, ways: list[str]) -> None:
    assert list_variants_without_ray_rank_and_bar(text) == ways


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\n\n", ["", ""]),
        (b" 10%|# |\r 50%|###|\r100%|####|\n", ["100%|####|"]),
        (b"100%|####|\r\x1b[K\nnext\n", ["100%|####|", "next"]),
        (b" 50%\rFinal collected 8 samples\n", ["Final collected 8 samples"]),
        (b"\x1b[36m(TaskRunner pid=12)\x1b[0m step\n", ["(TaskRunner pid=12) step"]),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x07\n", ["link"]),
        (b"bad \xff\xfe utf\n", ["bad �� utf"]),
        (b"\xe4\xbd\nnext\n", ["�", "next"]),
    ],
)
def test_cases(data: bytes, lines: list[str]) -> None:
    assert cut(data) == lines


def test_long_lines_are_cut_and_the_next_is_whole() -> None:
    assert cut(b"x" * (LINE_LIMIT + 9) + b"\nnext\n") == ["x" * LINE_LIMIT, "next"]


@pytest.mark.parametrize(
    ("text", "bare", "times"),
    [
        ("(TaskRunner pid=123) Final collected", "Final collected", 0),
        ("(WorkerDict pid=1, ip=10.0.0.2) rank ready [repeated 12x across cluster]", "rank ready", 12),
        ("rank ready [repeated 3x across cluster] (Ray deduplicates logs by default.)", "rank ready", 0),
        ("(W pid=1) a [repeated 3x across cluster] b", "a [repeated 3x across cluster] b", 0),
        ("(W pid=1) a [repeated 1234567x across cluster]", "a [repeated 1234567x across cluster]", 0),
        ("(W pid=1) a [repeated \u0663x across cluster]", "a [repeated \u0663x across cluster]", 0),
        (f"(W pid=1) a [repeated {'9' * 5000}x across cluster]", f"a [repeated {'9' * 5000}x across cluster]", 0),
        ("(no process) text", "(no process) text", 0),
        ("see pid=3", "see pid=3", 0),
        ("[repeated twice]", "[repeated twice]", 0),
    ],
)
def test_ray_wrapping(text: str, bare: str, times: int) -> None:
    assert strip_ray_prefix_and_repeat(text) == bare
    assert count_omitted_ray_repeats(text) == times
