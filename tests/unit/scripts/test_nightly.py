"""`make nightly`: its parts are of files that exist, and the shares of all are all."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from fakes import CHECKOUT

from scripts.nightly import choose, parts

DAY = datetime.date(2026, 11, 28)


def test_every_part_runs_files_that_exist() -> None:
    words = [(part.name, word) for part in parts() for word in part.argv if word.startswith("tests/")]
    assert [pair for pair in words if not (CHECKOUT / pair[1]).exists()] == []
    names = [part.name for part in parts()]
    assert len(names) == len(set(names))


def test_every_test_file_of_the_engine_is_in_a_part() -> None:
    run = {Path(word).name for part in parts() for word in part.argv}
    files = {path.name for path in (CHECKOUT / "tests/engine").glob("test_*.py")}
    assert files - run == set()


def test_ten_tenths_are_all_parts() -> None:
    shares = [part.name for number in range(1, 11) for part in choose(parts(), [], f"{number}/10", DAY)]
    assert sorted(shares) == sorted(part.name for part in parts() if not part.hours)
    tenths = {
        tuple(part.name for part in choose(parts(), [], "day/10", DAY + datetime.timedelta(n))) for n in range(10)
    }
    assert len(tenths) == 10


def test_a_name_stands_for_all_below_it() -> None:
    assert [part.name for part in choose(parts(), ["engine/push"], "", DAY)] == ["engine/push"]
    assert {part.name.partition("/")[0] for part in choose(parts(), ["fuzz", "journeys"], "", DAY)} == {
        "fuzz",
        "journeys",
    }


@pytest.mark.parametrize(
    ("names", "share"), [(["engine/pushes"], ""), ([], "0/10"), ([], "11/10"), ([], "x/10"), ([], "3")]
)
def test_what_names_no_part_is_refused(names: list[str], share: str) -> None:
    with pytest.raises(ValueError, match=r"part|PART|invalid"):
        choose(parts(), names, share, DAY)
