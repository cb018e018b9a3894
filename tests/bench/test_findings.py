"""What becomes of a measurement: its verdict, its row, its place in the table that is committed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as command
from benchmarks import table
from benchmarks.finding import Finding, find
from benchmarks.goal import Goal
from benchmarks.pairs import NotHere, Sample, Unusable
from benchmarks.place import Kept, Place

FACTS = {"tree": "v1-2-gabc", "machine": "2 cores", "engine": "Docker 26", "rounds": "all"}
ALL = Goal(key="7", what="a|b", anchor="c", gate=1.5, stretch=1.1, measure=lambda place: sample(1.2))


def sample(ratio: float, **more: Any) -> Sample:
    return Sample(ours=(ratio,), anchor=(1.0,), **more)


def goal(measure: Callable[[Place], Sample], **more: Any) -> Goal:
    return Goal(**{"key": "1", "what": "w", "anchor": "a", "gate": 1.5, "stretch": 1.1, "measure": measure, **more})


def fails(error: Exception) -> Callable[[Place], Sample]:
    def measure(place: Place) -> Sample:
        raise error

    return measure


@pytest.mark.parametrize(
    ("ratio", "verdict", "held"),
    [(1.0, "stretch reached", True), (1.4, "gate held", True), (1.6, "MISSED twice", False)],
)
def test_a_ratio_is_judged(ratio: float, verdict: str, held: bool) -> None:
    finding = find(goal(lambda place: sample(ratio)), Kept(), 3)
    assert (finding.verdict, finding.held) == (verdict, held)
    assert len(finding.samples) == (1 if held else 2)


def test_a_goal_that_is_missed_once_is_held() -> None:
    ratios = itertools.chain([9.0, 1.4])
    assert find(goal(lambda place: sample(next(ratios))), Kept(), 1).verdict == "gate held"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Unusable("rlbox build: exit code 2\n\nrlbox: error: no lock\n  next: x"),
         "BROKEN: rlbox build: exit code 2 … rlbox: error: no lock"),
        (ValueError("odd"), "BROKEN: ValueError: odd"),
        (KeyError(), "BROKEN: KeyError: KeyError()"),
        (NotHere("no engine"), "not measured here: no engine"),
    ],
)  # fmt: skip
def test_whatever_a_measurement_ends_with_is_a_row(error: Exception, verdict: str) -> None:
    finding = find(goal(fails(error)), Kept(), 1)
    assert (finding.verdict, finding.held) == (verdict, False)
    assert finding.cells() == ("1", "w", "a", "-", "1.5", "1.1", "-", "-", verdict)


def test_what_the_machine_does_not_allow_is_not_asked() -> None:
    slow_disk = sample(0.8, limit=(0.75,))
    assert find(goal(lambda place: slow_disk, gate=0.45, stretch=0.2, of_limit=1.1), Kept(), 1).verdict == (
        "gate held, 1.07 of the limit"
    )
    assert not find(
        goal(lambda place: sample(0.9, limit=(0.75,)), gate=0.45, stretch=0.2, of_limit=1.1), Kept(), 1
    ).held


def test_what_is_small_is_measured_once_and_not_judged() -> None:
    places: list[Place] = []

    def measure(place: Place) -> Sample:
        places.append(place)
        return sample(9.0)

    assert find(goal(measure), Kept(small=True), 15).verdict == "runs"
    assert [(place.rounds, place.pick("full", "small")) for place in places] == [(1, "small")]


def test_what_could_not_be_made_is_not_made_for_the_next_goal_again() -> None:
    made: list[Path] = []

    def make(place: Place) -> int:
        made.append(place.folder)
        raise Unusable("no")

    kept = Kept()
    for _ in range(2):
        assert find(goal(lambda place: sample(kept.get(make))), kept, 1).verdict == "BROKEN: no"
    assert len(made) == 1
    assert not made[0].exists()


def test_every_row_of_a_run_is_measured_and_what_failed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    goals = (goal(fails(ValueError("odd")), key="1"), goal(fails(NotHere("no disk")), key="2"), ALL)
    monkeypatch.setattr(command, "GOALS", goals)
    assert command.main(["--table", str(tmp_path / "t.md")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["goal", "1", "2", "7", "goal", "goal"]
    assert said[-2:] == ["goal 1: BROKEN: ValueError: odd", "goal 2: not measured here: no disk"]
    assert (tmp_path / "t.md").read_text().count("\n| ") == 5
    assert command.main(["7"]) == 0


def test_a_table_of_this_tree_is_gone_on_with() -> None:
    missed = Finding(goal=goal(lambda place: sample(2.0), key="8"), verdict="MISSED twice", samples=(sample(2.0),))
    held = Finding(goal=ALL, verdict="gate held", samples=(sample(1.2),))
    text = table.table_text(FACTS, [held.cells(), missed.cells()], "0.1")
    assert r"| 7 | a\|b | c | 1.2 | 1.5 | 1.1 | 1.2 s | 1 s | gate held |" in text.splitlines()
    assert table.kept_rows(text, FACTS) == {"7": held.cells()}
    for other in ({"tree": "v1-3-gdef"}, {"machine": "4 cores"}, {"rounds": "few"}):
        assert table.kept_rows(text, {**FACTS, **other}) == {}
    changed = {**FACTS, "tree": "v1-2-gabc with changes"}
    assert table.kept_rows(table.table_text(changed, [held.cells()], "0.1"), changed) == {}


@pytest.mark.parametrize(("value", "unit", "text"), [(0.0123, "s", "12.3 ms"), (2e6, "B", "2 MB"), (3.0, "", "3")])
def test_a_measure_has_its_unit(value: float, unit: str, text: str) -> None:
    found = Sample(ours=(value,), anchor=(value,), unit=unit)
    assert Finding(goal=ALL, verdict="gate held", samples=(found,)).cells()[6] == text


def test_the_words_of_a_run_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--once", "--table", "t.md"], ["--resume"], ["99"]):
        with pytest.raises(SystemExit):
            command.main(argv)
    assert "unknown goal 99" in capsys.readouterr().err
