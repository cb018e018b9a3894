"""Every message about a wrong spec, whole: tests/cases/{target,job}/*.toml hold the files and the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CASES, CHECKOUT, Folder

from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError
from rlbox.fixes.fix import Fix
from rlbox.job.job import load_job
from rlbox.target.target import load_target

TARGETS, JOBS = (sorted((CASES / kind).glob("*.toml")) for kind in ("target", "job"))


def message(folder: Folder, error: SpecError) -> str:
    return str(error).replace(str(folder.path), "PROJECT").replace(str(CHECKOUT), "SHIPPED")


@pytest.mark.parametrize("case", TARGETS, ids=lambda path: path.stem)
def test_target(case: Path, folder: Folder) -> None:
    facts = load_toml(case)
    for name, text in facts.get("files", {}).items():
        folder.write(name, text.lstrip("\n"))
    with pytest.raises(SpecError) as caught:
        load_target(folder.project, facts["load"])
    assert message(folder, caught.value) == facts["error"].lstrip("\n")


@pytest.mark.parametrize("case", JOBS, ids=lambda path: path.stem)
def test_job(case: Path, folder: Folder) -> None:
    facts = load_toml(case)
    for name, text in facts.get("files", {}).items():
        folder.write(name, text.lstrip("\n"))
    with pytest.raises(SpecError) as caught:
        load_job(folder.project, facts["load"])
    assert message(folder, caught.value) == facts["error"].lstrip("\n")


def test_a_file_that_is_no_text(folder: Folder) -> None:
    folder.target("mine").write_bytes(b"title = '\xff'\n")
    with pytest.raises(SpecError) as caught:
        load_target(folder.project, "mine")
    assert str(caught.value) == (
        "images/mine/target.toml: not UTF-8 text: "
        "'utf-8' codec can't decode byte 0xff in position 9: invalid start byte\n"
        "  next:  save the file as UTF-8"
    )


def test_a_file_that_is_a_folder(folder: Folder) -> None:
    (folder.path / "images/mine/target.toml").mkdir(parents=True)
    with pytest.raises(SpecError) as caught:
        load_target(folder.project, "mine")
    assert str(caught.value) == "images/mine/target.toml: cannot be read: Is a directory"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("text", "words"), [("", "must not be empty"), ("abcd", "at least 5 characters")])
def test_short_text_is_told_how_long_it_must_be(text: str, words: str) -> None:
    signature = {"pattern": "boom", "example": text or "boom", "anchor": [text] if text else []}
    fix = {"id": "mine", "title": text and "t", "why": "w", "remedy": "r", "signature": [signature]}
    with pytest.raises(SpecError, match=words):
        validate_spec(Fix, fix, "mine.toml")
