"""Two of the fifty rounds of `make nightly ARGS=cluster-campaign/chaos`.

`make nightly ARGS=cluster`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
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
