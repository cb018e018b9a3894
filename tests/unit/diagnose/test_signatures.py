"""The shipped signatures: each is found by a scan, is of no log alone, ties with none, and fits its own example."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT

from rlbox.diagnose.assess import assess
from rlbox.diagnose.catalogue import LogSignature, SignatureSet, signatures_of
from rlbox.diagnose.read.event import from_line
from rlbox.diagnose.read.line import read_row
from rlbox.diagnose.soundness import problems_of, ties
from rlbox.fixes.load import load_fixes
from rlbox.foreign import toml_table
from rlbox.spec.project import Project

NEAR_MISSES = CHECKOUT / "tests/cases/diagnose/near_misses.txt"


def _rows() -> list[tuple[LogSignature, str, str]]:
    """Return each signature with its example and what it must not fit."""
    found = []
    for path in sorted((CHECKOUT / "templates/fixes").glob("*.toml")):
        fix = {**toml_table(path.read_text("utf-8")), "id": path.stem}
        rows = fix.get("signature", ())
        found += [
            (signature, row["example"], row.get("unlike", ""))
            for signature, row in zip(signatures_of([fix]), rows, strict=True)
        ]
    return found


ROWS = _rows()


def test_each_is_sound() -> None:
    assert len(ROWS) > 400
    assert [(one.fix, problem) for one, example, _ in ROWS for problem in problems_of(one, example)] == []


def test_each_that_alarms_says_what_is_wrong_in_both_languages() -> None:
    """The title of a fix tells what it brings about: as a cause it would say the contrary."""
    alarming = {one.fix for one, _, _ in ROWS if one.role != "benign"}
    fixes = [fix for fix in load_fixes(Project(folder=CHECKOUT)) if fix.id in alarming]
    assert [fix.id for fix in fixes if not fix.failure or fix.failure == fix.failure_zh] == []


def test_none_ties_with_one_of_another_cause() -> None:
    assert list(ties((one, example) for one, example, _ in ROWS)) == []


def test_each_fits_its_example_and_not_what_it_is_unlike() -> None:
    catalogue = SignatureSet(one for one, _, _ in ROWS)
    assert [one.fix for one, example, _ in ROWS if one not in catalogue.fitting(example)] == []
    assert [one.fix for one, _, unlike in ROWS if unlike and one in catalogue.fitting(unlike)] == []


@pytest.mark.parametrize(
    ("pattern", "example", "problem"),
    [
        ("a|b", "a", "needs no text of 5 bytes"),
        (r"(?=reward)reward model", "ValueError: reward model", "look"),
        ("the model /data/models/x is gone", "ValueError: the model /data/models/x is gone", "a path"),
        (r"cannot reach 10\.11\.12\.13", "OSError: cannot reach 10.11.12.13", "an address"),
        ("process 1234567 is gone", "ValueError: process 1234567 is gone", "a number of a process"),
        ("no weights of qwen2-7b", "ValueError: no weights of qwen2-7b", "the name of a model"),
        ("a banana fell", "a banana fell", "no scan finds its example"),
    ],
)
def test_what_is_unsound(pattern: str, example: str, problem: str) -> None:
    one = LogSignature(cause="x", fix="x", title="x", remedy="x", pattern=pattern)
    assert any(problem in said for said in problems_of(one, example)), list(problems_of(one, example))


def test_two_that_nothing_parts_tie() -> None:
    rows = [
        (
            LogSignature(cause=cause, fix=cause, title="", remedy="", pattern="reward model is gone"),
            "reward model is gone",
        )
        for cause in ("one", "two")
    ]
    assert list(ties(rows)) != []


def test_what_libraries_say_of_something_else_is_no_cause() -> None:
    catalogue = SignatureSet(one for one, _, _ in ROWS)
    rows = [row.split(" | ", 1) for row in NEAR_MISSES.read_text("utf-8").splitlines() if not row.startswith("#")]
    assert len(rows) > 40
    found = [(cause, line, assess(from_line(read_row(1, line), 3), catalogue).cause) for cause, line in rows]
    assert [row for row in found if row[0] == row[2]] == []
