"""Every message about a wrong spec, whole: tests/cases/spec_errors.toml holds the files and the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes import CASES, CHECKOUT, Folder

from rlbox.artifacts.profile import load_profile
from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError
from rlbox.fixes.fix import Fix
from rlbox.job.job import load_job
from rlbox.target.target import load_target

ERRORS: dict[str, dict[str, dict[str, Any]]] = load_toml(CASES / "spec_errors.toml")
LOADERS: dict[str, Callable[[Project, str], object]] = {"target": load_target, "job": load_job, "profile": load_profile}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in ERRORS.items() for name in cases])
def test_message(kind: str, name: str, folder: Folder) -> None:
    case = ERRORS[kind][name]
    for path, text in case.get("files", {}).items():
        folder.write(path, text.lstrip("\n"))
    with pytest.raises(SpecError) as caught:
        LOADERS[kind](folder.project, case["load"])
    message = str(caught.value).replace(str(folder.path), "PROJECT").replace(str(CHECKOUT), "SHIPPED")
    assert message == case["error"].lstrip("\n")


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
