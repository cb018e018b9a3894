"""Lines around a place of a log, read by a seek."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlbox.diagnose.first_fatal import (
    CONTEXT_LINES,
    FatalLine,
    FatalPosition,
    find_first_fatal,
    read_fatal_line,
    read_last_line,
    read_last_lines,
)
from rlbox.logs.log_file import LogTimes


def spot(number: int, text: str, block_number: int, block_offset: int) -> FatalPosition:
    return FatalPosition(number=number, text=text, block_number=block_number, block_offset=block_offset)


def test_a_hundred_lines_on_each_side(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    rows = [f"line {number}" for number in range(1, 400)]
    rows[249] = "ValueError: bad"
    log.write_text("\n".join(rows))
    found = find_first_fatal(log)
    assert found is not None
    line = read_fatal_line(log, found)
    assert (line.number, line.text) == (250, "ValueError: bad")
    assert (line.before[0], line.before[-1], len(line.before)) == ("line 150", "line 249", CONTEXT_LINES)
    assert (line.after[0], line.after[-1], len(line.after)) == ("line 251", "line 350", CONTEXT_LINES)
    assert log.read_bytes()[line.offset :].startswith(b"ValueError: bad\n")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.sampled_from(["", "x", "y" * 300, "a\rb", "\x1b[1mred\x1b[0m", "\udcff"]), min_size=1, max_size=400
    ),
    data=st.data(),
)
def test_every_line_is_found_from_every_block(tmp_path: Path, lines: list[str], data: st.DataObject) -> None:
    raw = [line.encode("utf-8", "surrogateescape") for line in lines]
    log = tmp_path / "stage.log"
    log.write_bytes(b"\n".join(raw) + data.draw(st.sampled_from([b"", b"\n"])))
    at = data.draw(st.integers(0, len(lines) - 1))
    block = data.draw(st.integers(0, at))
    offsets = [sum(len(row) + 1 for row in raw[:index]) for index in (block, at)]
    line = read_fatal_line(log, spot(at + 1, "text", block + 1, offsets[0]))
    shown = {"a\rb": "b", "\x1b[1mred\x1b[0m": "red", "\udcff": "�"}
    texts = [shown.get(text, text) for text in lines]
    assert line.offset == offsets[1]
    assert list(line.before) == texts[max(0, at - CONTEXT_LINES) : at]
    after = texts[at + 1 : at + 1 + CONTEXT_LINES]
    assert list(line.after) == after or (list(line.after) == after[:-1] and not lines[-1])


def test_a_log_that_is_gone_keeps_the_line(tmp_path: Path) -> None:
    gone = read_fatal_line(tmp_path / "gone.log", spot(7, "ValueError", 1, 0))
    assert gone == FatalLine(number=7, text="ValueError")
    assert (read_last_line(tmp_path / "gone.log"), read_last_lines(tmp_path / "gone.log", 3)) == (None, "")
    assert find_first_fatal(tmp_path / "gone.log") is None


@pytest.mark.parametrize(
    ("text", "number", "quoted"),
    [("a\nb\n\n \n", 2, "b"), ("a\nb", 2, "b"), ("a", 1, "a"), ("\n\nx\n", 3, "x")],
)
def test_the_last_line_that_is_not_blank(tmp_path: Path, text: str, number: int, quoted: str) -> None:
    log = tmp_path / "stage.log"
    log.write_text(text)
    line = read_last_line(log)
    assert line is not None
    assert (line.number, line.text) == (number, quoted)


def test_an_empty_log_has_no_last_line(tmp_path: Path) -> None:
    (tmp_path / "stage.log").write_text("\n \n")
    assert read_last_line(tmp_path / "stage.log") is None


def test_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_text("".join(f"{number}\n" for number in range(10_000)))
    assert read_last_lines(log, 500) == "".join(f"{number}\n" for number in range(9500, 10_000))


def test_when_a_line_was_written(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    (tmp_path / "stage.log.times").write_text("0 1000\n50 2500\ntorn\n90 9000\n95\n" + "9" * 5000 + " 1\n")
    assert [LogTimes(log).at(offset) for offset in (0, 49, 50, 89, 90, 500)] == [1.0, 1.0, 2.5, 2.5, 9.0, 9.0]
    assert LogTimes(tmp_path / "other.log").at(0) is None


def test_garbage_without_line_feeds_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_bytes(bytes(range(11, 256)) * 50_000 + b"\nValueError: bad\n")
    found = find_first_fatal(log)
    assert found is not None
    line = read_fatal_line(log, found)
    assert (line.number, line.text) == (2, "ValueError: bad")
    assert sum(map(len, line.before)) < 1 << 20
