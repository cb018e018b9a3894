"""Everything wrong that somebody may type: the table `wrong.toml` says how each line ends, and all of them are typed.

A line is typed twice, as it stands and with `--json`, which changes neither exit code nor message.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from fakes import Folder, Rlbox
from groundbox import write_ground
from test_cli_zh import english_lines

from rlbox.cli.root import COMMANDS, root
from rlbox.config.toml_files import load_toml

TABLE = Path(__file__).with_name("wrong.toml")
ROWS: list[dict[str, Any]] = [{"where": "project", "code": 2, **row} for row in load_toml(TABLE)["rows"]]
_OTHERS = re.compile(
    r"Invalid .* \(at end of document\)|Expecting property name enclosed in double quotes|File name too long"
    r"|No such file or directory|rollouts of the RL loop, one update each"
)
_ERROR = re.compile(r"^(?:rlbox: error|Error): ", re.MULTILINE)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with targets, jobs and files, of which some are as they should be, and a disk with runs."""
    return write_ground(Folder(tmp_path_factory.mktemp("wrong")))


@pytest.fixture
def typed(
    ground: Path, rlbox: Rlbox, remembering: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Rlbox:
    """The command line in that project; `disk` is its data disk, and no engine is there."""
    monkeypatch.chdir(ground)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{ground}/none.sock")
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    return rlbox


def cases() -> Iterator[Any]:
    """Yield the rows; what asks an engine is told that there is none by a socket."""
    for row in ROWS:
        marks = [pytest.mark.allow("sockets")] if row["where"] == "engine" else []
        yield pytest.param(row, marks=marks, id=f"{row['where']}: {row['typed']}")


def told(text: str) -> str:
    """Return what is wrong, of what stands on stderr: without where and next."""
    what = _ERROR.split(text, maxsplit=1)[-1] if _ERROR.search(text) else ""
    return what.partition("\n  where: ")[0].partition("\n  next:  ")[0].rstrip("\n")


def with_json(row: dict[str, Any]) -> list[str]:
    """Return the words with `--json` where it is no option's value, and no word of a command in a container."""
    words = shlex.split(row["typed"])
    at = words.index("--") if "--" in words else 1 if row["says"].endswith("requires an argument.") else len(words)
    return [*words[:at], "--json", *words[at:]]


@pytest.mark.parametrize("row", list(cases()))
def test_what_is_wrong_is_said(
    row: dict[str, Any], typed: Rlbox, ground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if row["where"] == "disk":
        monkeypatch.setenv("RLBOX_DATA", str(ground / "disk"))
    said = typed(*shlex.split(row["typed"]))
    assert (said.code, told(said.err).replace(str(ground), "PROJECT")) == (row["code"], row["says"])
    if "rlbox: error: " in said.err:
        assert "\n  where: " in said.err
        assert "\n  next:  " in said.err
    if row["typed"] in ("vast", "eval"):  # a group without a verb of its own has help, and no options
        return
    said = typed(*with_json(row))
    assert said.code == row["code"]
    if error := said.data.get("error"):  # of what is found wrong with files there is a result
        assert error["what"].replace(str(ground), "PROJECT") == row["says"]


def test_the_table_covers_every_verb_and_class() -> None:
    assert len({(row["where"], row["typed"]) for row in ROWS}) == len(ROWS)
    typed = [shlex.split(row["typed"]) for row in ROWS]
    assert set(COMMANDS) <= {words[0] for words in typed if words}
    for verb in COMMANDS:
        command = root.get_command(click.Context(root), verb)
        if isinstance(command, click.Group):
            assert {(verb, name) for name in command.commands} <= {tuple(words[:2]) for words in typed}
    assert {row["code"] for row in ROWS} == {1, 2, 4, 5}


@pytest.mark.slow
@pytest.mark.allow("sockets")
def test_what_is_wrong_is_said_in_chinese(typed: Rlbox, ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no error a sentence is English, but for what the parsers of Python, the system and the job's author say."""
    left = {}
    for row in ROWS:
        with monkeypatch.context() as patch:
            patch.setenv("RLBOX_LANG", "zh")
            if row["where"] == "disk":
                patch.setenv("RLBOX_DATA", str(ground / "disk"))
            error = _OTHERS.sub("", typed(*shlex.split(row["typed"])).err)
        if lines := english_lines(error):
            left[row["typed"]] = lines
    assert left == {}
