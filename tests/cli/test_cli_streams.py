"""What a command line meets outside: an output that is closed, full or left, a poor locale, a folder that is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

pytestmark = pytest.mark.allow("processes")

FULL = (
    "rlbox: error: this machine refuses: No space left on device\n  where: {command}\n"
    "  next:  free space there, or name another place\n"
)


def typed(words: str, redirected: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `rlbox WORDS REDIRECTED` by a shell in a folder of its own."""
    line = f'"$0" -m rlbox {words} {redirected}'
    settings = {**os.environ, "PYTHONPATH": str(CHECKOUT), **env}
    return subprocess.run(
        ["bash", "-c", line, sys.executable], cwd=folder, env=settings, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("targets", "rlbox targets"),
        ("--help", "rlbox"),
        ("show --schema fix", "rlbox show"),
        ("logs --help", "rlbox logs"),
    ],
)
def test_a_full_output(words: str, command: str, tmp_path: Path) -> None:
    said = typed(words, ">/dev/full", tmp_path)
    assert (said.returncode, said.stderr) == (5, FULL.format(command=command))


@pytest.mark.parametrize("words", ["targets", "--help", "logs --help"])
def test_a_reader_that_has_left(words: str, tmp_path: Path) -> None:
    said = typed(words, "| true; echo ${PIPESTATUS[0]}", tmp_path)
    assert (said.stdout, said.stderr) == ("141\n", "")


@pytest.mark.parametrize(("redirected", "code"), [("2>&-", 2), (">&- 2>&-", 2), ("<&-", 2)])
def test_talk_that_nobody_can_take_changes_no_exit_code(redirected: str, code: int, tmp_path: Path) -> None:
    said = typed("show nosuch", redirected, tmp_path)
    assert (said.returncode, said.stdout, "Traceback" in said.stderr) == (code, "", False)


def test_a_closed_output_is_no_other_file(tmp_path: Path) -> None:
    """The next file that is opened gets the number of one that is closed, and what is said would be written into it."""
    said = typed("render", ">&- 2>&-", tmp_path)
    assert said.returncode == 0
    written = (tmp_path / "images/local/Dockerfile").read_text()
    assert written == (CHECKOUT / "images/local/Dockerfile").read_text()


def test_a_locale_without_characters(tmp_path: Path) -> None:
    """It is answered in English; characters it lacks are escaped, in JSON as JSON does."""
    poor = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    said = typed("fixes show lcudart-link --lang zh", "", tmp_path, **poor)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("# lcudart-link: the linker finds")
    said = typed("show nosüch --json", "", tmp_path, **poor)
    assert said.returncode == 2
    assert json.loads(said.stdout)["error"]["what"] == "unknown target or job 'nosüch'"
    assert said.stderr.splitlines()[0] == "rlbox: error: unknown target or job 'nos\\xfcch'"


@pytest.mark.parametrize("words", ["targets", "runs --json", "show local --project /"])
def test_a_working_directory_that_was_removed(words: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    said = typed(words, "", gone, BASH_ENV=str(removing(tmp_path)))
    assert (said.returncode, said.stderr) == (
        2,
        f"rlbox: error: the working directory has been removed\n  where: rlbox {words.split()[0]}\n"
        "  next:  cd to a folder that is there\n",
    )
    if "--json" in words:
        assert json.loads(said.stdout)["error"]["exit_code"] == 2


def removing(folder: Path) -> Path:
    """A file of settings that removes the folder in which a shell begins."""
    path = folder / "settings"
    path.write_text('rmdir "$PWD"\n')
    return path
