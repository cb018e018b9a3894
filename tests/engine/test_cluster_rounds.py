"""Two of the fifty rounds of `make nightly ARGS=cluster-campaign/chaos`, and how their table reads.

`make nightly ARGS=cluster`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clustercampaign import line, medians, table
from clusterrounds import KILLED, TROUBLES, WEIGHTS, Rounds, drawn
from clusterstand import built

SEED = 1


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Rounds]:
    """Both clusters; they go, whatever a round did, and nothing of them is left."""
    with tempfile.TemporaryDirectory(prefix="rlc-") as folder, built(tmp_path, ("pair",), TMPDIR=folder) as hosts:
        found = Rounds(hosts=hosts)
        try:
            found.begin()
            yield found
        finally:
            left = found.end()
        assert not any(left.values()), left


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")
def test_two_rounds(rounds: Rounds) -> None:
    """One in which something happens to a host, and one in which the command line is killed."""
    deeds = {number: drawn(SEED, number)[0] for number in range(1, 50)}
    first = next(number for number, deed in deeds.items() if deed in TROUBLES)
    second = next(number for number, deed in deeds.items() if deed in KILLED)
    for number in (first, second):
        played = rounds.play(SEED, number)
        assert played.held, played


def test_all_that_can_happen_is_drawn_and_always_the_same() -> None:
    drawn_ones = [drawn(18, number)[:2] for number in range(1, 51)]
    assert {deed for deed, _ in drawn_ones} == {*WEIGHTS} == {*TROUBLES, *KILLED}
    assert drawn_ones == [drawn(18, number)[:2] for number in range(1, 51)]


def test_the_table() -> None:
    row = {
        "number": 1,
        "deed": "cable, for long",
        "node": "node1",
        "report": "a|b",
        "seconds": 12.5,
        "theirs": "goes on",
        "leaks": [],
        "wrong": [],
        "load": 2.0,
        "tree": "t",
        "held": True,
    }
    assert line(row) == "| 1 | cable, for long | node1 | a/b | 12.5 | goes on | nothing | - | 2.0 | t |"
    assert list(medians([row, {**row, "seconds": 14.5}])) == [
        "- cable: 13.5 s in the middle of 2, 14.5 s at most; aimed at 15 s"
    ]
    assert "1 of 50 rounds of seed 18, 1 held; engines: " in table([row], 50, 18)
