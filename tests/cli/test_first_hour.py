"""What a `next:` says is done, and then it is otherwise: the lines of `first_hour.toml`, each with its way out.

What is done is read off the printed line (tests/following.py); where it says what to do with a file, the table holds
that change.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Folder, fitting_lock
from following import Follow, Step
from groundbox import write_ground

from rlbox.config.toml_files import load_toml

ROWS: list[dict[str, Any]] = load_toml(Path(__file__).with_name("first_hour.toml"))["rows"]


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the table `wrong.toml`, with more that is wrong."""
    folder = Folder(tmp_path_factory.mktemp("pattern"))
    write_ground(folder)
    for name, text in load_toml(Path(__file__).with_name("first_hour.toml"))["files"].items():
        folder.write(name, text)
    return folder.path


@pytest.fixture
def ground(pattern: Path, tmp_path: Path, remembering: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that project, in which the line is typed; no engine is there, and nothing on standard input."""
    place = tmp_path / "ground"
    shutil.copytree(pattern, place, symlinks=True)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}/none.sock")
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    monkeypatch.setattr("rlbox.artifacts.relock.prepare_lock_sources", lambda app, target, sources: sources)
    monkeypatch.setattr("rlbox.artifacts.relock.resolve_lock", lambda target, own, *rest: fitting_lock(target, own))
    return place


def cases() -> Iterator[Any]:
    """Yield the rows; what asks an engine is told that there is none by a socket."""
    for row in ROWS:
        allowed = ["sockets"] * (row["where"] == "engine") + ["processes"] * (row.get("asks") == "machine")
        marks = [pytest.mark.allow(*allowed)] if allowed else []
        yield pytest.param(row, marks=marks, id=f"{row['typed']} ({row['does']})")


@pytest.fixture
def away(request: pytest.FixtureRequest) -> None:
    """No engine is asked where the situation is not about one."""
    where = request.node.callspec.params["row"]["where"]
    if where != "engine":
        request.getfixturevalue("unasked" if where == "network" else "no_engine")


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("row", list(cases()))
def test_it_is_followed(row: dict[str, Any], follow: Follow, ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ground)
    if row["where"] == "disk":
        monkeypatch.setenv("RLBOX_DATA", str(ground / "disk"))
    step = follow(*shlex.split(row["typed"]))
    if "edit" in row:
        edit(ground, **row["edit"])
    do(row, step, follow, ground, monkeypatch)


def edit(ground: Path, file: str, old: str = "", new: str = "") -> None:
    """Change a text in a file; without `old`, put `new` behind it."""
    path = ground / file
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    assert old in text
    path.write_text(text.replace(old, new) if old else text + new, "utf-8")


def do(row: dict[str, Any], step: Step, follow: Follow, ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the step says, and type the line again, where that shows it."""
    code, fill, nth = row.get("code", 0), row.get("fill", {}), row.get("nth", 0)
    match row["does"]:
        case "command":
            follow.types(step, nth, code, **fill)
            return
        case "command, again":
            follow.types(step, nth, **fill)
        case "choice" | "form" | "another":
            right = value(row, step)
            if "instead" in row:
                follow.instead(step, row["instead"], right, code)
                return
            step = replace(step, typed=(*step.typed, right))
        case "option":
            step = replace(step, typed=(*step.typed, *step.options(fill), *filter(None, [row.get("value")])))
        case "variable":
            monkeypatch.setenv(step.setting(nth), row["value"].replace("PROJECT", str(ground)))
        case does:
            assert does == "edit", does
    follow.again(step, code=code)


def value(row: dict[str, Any], step: Step) -> str:
    """Return what the step offers in the place of what was wrong; `right` where it only says to name another."""
    match row["does"]:
        case "choice":
            return step.choices()[row.get("nth", 0)]
        case "form":
            return step.form(row.get("fill", {}))
        case _:
            return str(row["right"])
