"""Every fix on the real engine: its fault is there without it, gone with it, and each part of it is needed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_lane import RESULTS, changed, own_digest, recorded
from fault_mutants import Mutant, mutants
from faultbox import cases, load_case, load_fix, notices, problems

NEEDED = 40
CAUGHT = 0.95
FAULTS_OF, MUTANTS_OF = 8, 60
"""`make test` takes one fault test of eight, and one mutant of sixty, of those that need no compiler: an image with one
takes a bare machine more than a minute. `make nightly ARGS=mutants/fixes` takes all."""
CHANGED = changed()
"""Fixes that differ from what the last `make nightly ARGS=mutants/fixes` recorded run with all their mutants."""


def is_sampled(name: str, of: int) -> bool:
    """Whether a fix, or a mutant `FIX: PART`, is among those of `make test`."""
    case = load_case(name.partition(":")[0])
    if case.id in CHANGED:
        return True
    drawn = int(hashlib.sha256(name.encode()).hexdigest(), 16) % of == 2
    return drawn and "cc" not in (case.image, case.image_with)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", [name if is_sampled(name, FAULTS_OF) else pytest.param(name, marks=SLOW) for name in cases()]
)
def test_the_fault_is_gone_with_the_fix(name: str) -> None:
    assert problems(load_case(name), load_fix(name)) == []


def test_enough_fixes_are_proven() -> None:
    assert len(cases()) >= NEEDED


def every_mutant() -> Iterator[Mutant]:
    for name in cases():
        yield from mutants(load_fix(name))


def survivors(chosen: list[Mutant]) -> list[str]:
    return [mutant.name for mutant in chosen if not notices(load_case(mutant.fix.id), mutant.fix)]


def test_a_sample_of_what_fixes_bake_is_needed() -> None:
    chosen = [mutant for mutant in every_mutant() if is_sampled(mutant.name, MUTANTS_OF)]
    alive = survivors(chosen)
    assert len(alive) <= (1 - CAUGHT) * len(chosen) + 1, alive


@pytest.mark.slow
def test_all_that_fixes_bake_is_needed() -> None:
    chosen = list(every_mutant())
    alive = survivors(chosen)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants caught; alive: {alive}")
    assert len(alive) <= (1 - CAUGHT) * len(chosen), alive


def test_the_last_full_result_names_every_fault_test() -> None:
    rows = re.findall(r"^\| (\S+) \| (yes|\*\*no\*\*) \|", RESULTS.read_text("utf-8"), re.M)
    assert {name for name, seen in rows if seen == "yes"} >= set(cases()) - CHANGED


def test_a_fix_that_differs_from_the_last_full_result_is_changed(tmp_path: Path) -> None:
    name = cases()[0]
    table = tmp_path / "RESULTS.md"
    table.write_text(f"| {name} | yes | yes | 1/1 | 2 | {own_digest(name)} |\n| other | yes | yes | – | 2 | failed |\n")
    assert recorded(table) == {name: own_digest(name)}
    table.write_text(f"| {name} | yes | yes | 1/1 | 2 | {'0' * 12} |\n")
    assert recorded(table)[name] != own_digest(name)
