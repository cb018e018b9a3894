"""Which of several fatal lines is the cause, and in which order they are told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rlbox.diagnose.cause import Cause
from rlbox.diagnose.first_fatal import FatalLine, Grade, LogFailure, find_responsible_line, sort_failures

STAGE, VLLM = "stages/1-train/stage.log", "stages/1-train/vllm.log"
EXIT = Cause(kind="exit", what="stage train ended with exit code 1", where=STAGE)


def fatal(log: str, at: float | None, grade: Grade = "fatal", said_at: str = "") -> LogFailure:
    return LogFailure(log=log, line=FatalLine(number=1, text="ValueError"), at=at, grade=grade, stated_clock=said_at)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ((fatal(STAGE, 100.0), fatal(VLLM, 90.0)), VLLM),
        ((fatal(STAGE, 90.0), fatal(VLLM, 100.0)), STAGE),
        ((fatal(STAGE, 100.0), fatal(VLLM, 101.0)), VLLM),  # the same second: what clients make of it comes after
        ((fatal(STAGE, None), fatal(VLLM, None)), VLLM),
        (
            (
                fatal(STAGE, 100.0, said_at="2026-01-02 10:00:00,100"),
                fatal(VLLM, 100.0, said_at="2026-01-02 10:00:00,900"),
            ),
            STAGE,
        ),
    ],
)
def test_order(found: tuple[LogFailure, ...], first: str) -> None:
    assert sort_failures(found)[0].log == first
    assert sort_failures(tuple(reversed(found)))[0].log == first


def test_the_earliest_is_the_cause() -> None:
    found = sort_failures((fatal(STAGE, 100.0), fatal(VLLM, 90.0)))
    assert find_responsible_line(EXIT, found, Path("none")) == found[0]


@pytest.mark.parametrize("grade", ["noticed", "wrapper"])
def test_one_that_tells_less_is_not_the_cause(grade: Grade) -> None:
    found = sort_failures((fatal(STAGE, 100.0), fatal(VLLM, 90.0, grade)))
    chosen = find_responsible_line(EXIT, found, Path("none"))
    assert chosen is not None
    assert chosen.log == STAGE


def test_a_line_of_long_ago_is_another_story() -> None:
    found = sort_failures((fatal(STAGE, 10_000.0), fatal(VLLM, 90.0)))
    chosen = find_responsible_line(EXIT, found, Path("none"))
    assert chosen is not None
    assert chosen.log == STAGE


def test_a_dead_service_is_not_explained_by_its_client(tmp_path: Path) -> None:
    cause = dataclasses.replace(EXIT, kind="service", where=VLLM)
    (tmp_path / "stages/1-train").mkdir(parents=True)
    (tmp_path / VLLM).write_text("loading\nbye\n")
    chosen = find_responsible_line(cause, (fatal(STAGE, 100.0),), tmp_path)
    assert chosen is not None
    assert (chosen.log, chosen.line.number, chosen.line.text) == (VLLM, 2, "bye")


def test_no_log_at_all() -> None:
    assert find_responsible_line(dataclasses.replace(EXIT, where=""), (), Path("none")) is None
    assert find_responsible_line(EXIT, (), Path("none")) is None
