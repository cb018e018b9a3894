"""Short logs of every cause, of causes that nobody knows, and of programs that are well: `tests/cases/diagnose`.

A case begins with `=== CAUSE | a part of the line that broke first`; CAUSE may be several, with commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.diagnose.act.catalogue import load_catalogue
from rlbox.diagnose.act.diagnose import diagnose
from rlbox.diagnose.catalogue import SignatureSet
from rlbox.spec.project import Project

CASES = CHECKOUT / "tests/cases/diagnose"
LEAST_LINES = 0.96


@pytest.fixture(scope="module")
def catalogue() -> SignatureSet:
    return load_catalogue(Project(folder=CHECKOUT).fix_files())


def cases(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield causes, a part of the telling line, and the log of each case."""
    text = (CASES / f"{name}.txt").read_text("utf-8")
    for part in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, _, log = part.partition("\n")
        cause, _, line = head.partition(" | ")
        yield cause.strip(), line.strip(), log


def answer(log: str, catalogue: SignatureSet, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "a.log"
    path.write_text(log, encoding="utf-8")
    return diagnose([path], catalogue).as_json()


@pytest.mark.parametrize(("name", "least"), [("known", 190), ("unknown", 25)])
def test_causes_and_lines(name: str, least: int, catalogue: SignatureSet, tmp_path: Path) -> None:
    rows = [(cause, line, answer(log, catalogue, tmp_path)) for cause, line, log in cases(name)]
    assert len(rows) >= least
    assert [
        (cause, line, found["cause"]) for cause, line, found in rows if found["cause"] not in cause.split(",")
    ] == []
    missed = [line for _, line, found in rows if line not in found["first_fatal"]["text"]]
    assert len(missed) <= (1 - LEAST_LINES) * len(rows), missed


def test_healthy_logs_do_not_alarm(catalogue: SignatureSet, tmp_path: Path) -> None:
    rows = [(line, answer(log, catalogue, tmp_path)) for _, line, log in cases("healthy")]
    assert len(rows) > 15
    assert [(line, found["first_fatal"]) for line, found in rows if found["fatal"]] == []
