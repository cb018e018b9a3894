"""Every place in the code that gives a next step stands in the table, with a proof that there is; few wait for one.

A new `next:` goes into `tests/cli/next_steps.toml`: `typed`, the tests that do what it says and see the outcome change
(they take the fixture `follow`, which looks for that); `made`, one that makes its situation; `open`, why there is none.
Which tests make a place: `PYTHONPATH=.:tests RLBOX_NEXT_STEPS=FILE pytest -p next_recorder tests/unit tests/cli`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

from fakes import CHECKOUT
from next_places import Place, places
from next_table import rows

from rlbox.spec.load import load_toml

MOST_MADE = 3
MOST_OPEN = 0
"""How many places may wait to be followed, and to be made: numbers that only fall."""
SITUATIONS = CHECKOUT / "tests/cli/next_typed.toml"
DATA = ("test_it_is_followed", "test_what_is_found_is_mended", "test_a_line_is_typed_again")
FOUND = [CHECKOUT / name for name in ("tests/cli/next_doctor.toml", "tests/engine/next_container.toml")]


def test_every_place_is_in_the_table() -> None:
    found, told = places(CHECKOUT), [row.place for row in rows()]
    assert len(found) > 400
    assert sorted(map(str, found - set(told))) == []  # new: write a row for it, and a test that types it
    assert sorted(map(str, set(told) - found)) == []  # gone: take its row out
    assert [str(place) for place, count in Counter(told).items() if count > 1] == []


def test_few_places_are_not_followed() -> None:
    count = Counter(row.kind for row in rows())
    assert (count["made"], count["open"]) == (MOST_MADE, MOST_OPEN)  # lower the numbers here with the table
    assert all(proof for row in rows() for proof in row.proofs)


@functools.cache
def known_tests(path: Path) -> dict[str, set[str]]:
    """Return the tests of a file, each with the fixtures and parameters that it takes."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {one.name: {argument.arg for argument in one.args.args} for one in functions}


@functools.cache
def situations() -> set[str]:
    """Return the names of the situations that are data."""
    tables = [load_toml(file) for file in FOUND]
    found = {f"{row['finding']}{row.get('way', '')}" for table in tables for row in table["rows"]}
    found |= {row["typed"] for table in tables for row in table.get("lines", ())}
    return found | {f"{row['typed']} ({row['does']})" for row in load_toml(SITUATIONS)["rows"]}


def test_every_proof_is_there() -> None:
    for row in rows():
        for proof in row.proofs if row.kind != "open" else ():
            file, _, name = proof.partition("::")
            test, _, case = name.partition("[")
            assert (CHECKOUT / file).is_file(), proof
            assert test in known_tests(CHECKOUT / file), proof
            if row.kind == "typed":
                assert "follow" in known_tests(CHECKOUT / file)[test], proof
            if case and test in DATA:
                assert case.removesuffix("]") in situations(), proof


def test_the_place_is_where_the_text_is(tmp_path: Path) -> None:
    """Through names, tables, parameters and helpers; what is handed on is no place of its own."""
    text = """
_OTHER = {1: "name another", 2: f"free {ROOM}"}
def refuse(error, step=""):
    "Say `next:  nothing` of its own."
    raise Refused(str(error), next_step=step or _OTHER[error.errno])
class Job:
    def check(self, found):
        what, step = "it is wrong", "mend it" if found else remedy(found)
        refuse(what, step)
        raise Refused(what, next_step=found.next_step) from None
def remedy(found):
    return f"rlbox lock {found.name}" + " --upgrade"
def tell(app, found):
    app.say(f"next: rlbox build {found}")
    found.next_step += "; or wait"
    return Part(next_step="; ".join(part for part in (found.step, f"raise {found}") if part))
"""
    (tmp_path / "rlbox").mkdir()
    (tmp_path / "rlbox/one.py").write_text(text)
    assert sorted((place.function, place.text) for place in places(tmp_path)) == [
        ("", "free {}"),
        ("", "name another"),
        ("Job.check", "mend it"),
        ("remedy", "rlbox lock {} --upgrade"),
        ("tell", "; or wait"),
        ("tell", "raise {}"),
        ("tell", "rlbox build {}"),
    ]
    assert places(tmp_path) != places(CHECKOUT)


def test_what_is_printed_is_of_its_place() -> None:
    place = Place("rlbox/one.py", "remedy", "rlbox lock {} --upgrade {}; or wait")
    assert place.pattern.search("rlbox lock mine --upgrade six; or wait")
    assert not re.fullmatch(place.pattern, "rlbox build mine")
