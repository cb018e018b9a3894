"""The one error handler: what each kind of end looks like on stdout, stderr and in the exit code."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
from fakes import Folder, Rlbox, Said

from rlbox import __version__
from rlbox.cli.root import SECTIONS
from rlbox.config.project import Project
from rlbox.errors import (
    ISSUES,
    EngineError,
    Interrupted,
    LockHeld,
    MachineError,
    RegistryError,
    RlboxError,
    TimedOut,
    WorkFailed,
)
from rlbox.system.files import cache_path


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(project: Project, name: str) -> NoReturn:
        raise error

    monkeypatch.setattr("rlbox.image.plan.ImagePlanInputs.load", fail)


def test_help_and_version(rlbox: Rlbox) -> None:
    assert rlbox("--version") == Said(code=0, out=f"rlbox {__version__}\n", err="")
    assert rlbox("--help") == rlbox("-h") == rlbox() == rlbox("help")
    assert rlbox("help", "run") == rlbox("run", "--help")
    assert all(f"{title}:\n" in rlbox().out for title in SECTIONS)
    assert rlbox().code == 0


@pytest.mark.parametrize("group", ["cluster", "eval", "store", "vast"])
def test_group_without_a_command_prints_its_help(rlbox: Rlbox, group: str) -> None:
    said = rlbox(group)
    assert (said.code, said.err) == (2, rlbox(group, "--help").out)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RlboxError, 1),
        (WorkFailed, 1),
        (EngineError, 4),
        (MachineError, 5),
        (RegistryError, 6),
        (TimedOut, 7),
        (LockHeld, 8),
        (Interrupted, 130),
    ],
)
def test_every_failure(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch, kind: type[RlboxError], code: int) -> None:
    fail_with(monkeypatch, kind("it broke", where="here", next_step="mend it"))
    assert rlbox("render", "local") == Said(
        code=code, out="", err="rlbox: error: it broke\n  where: here\n  next:  mend it\n"
    )
    said = rlbox("render", "local", "--json")
    assert said.data == {
        "schema": 1,
        "error": {"what": "it broke", "where": "here", "next": "mend it", "exit_code": code},
    }
    assert (said.code, said.err) == (code, "rlbox: error: it broke\n  where: here\n  next:  mend it\n")


def test_a_bug(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("by\nzero"))
    path = cache_path("logs", f"bug-{os.getpid()}.log")
    assert rlbox("render", "local") == Said(
        code=3,
        out="",
        err=f"rlbox: bug: ZeroDivisionError: by\nzero\n  where: {path}\n  next:  report it with that file: {ISSUES}\n",
    )
    text = path.read_text()
    assert text.startswith(f"rlbox {__version__}\nTraceback (most recent call last):\n")
    assert text.endswith("ZeroDivisionError: by\nzero\n")
    assert f"{path.stat().st_mode:o}" == "100600"


def test_a_bug_without_a_place_for_its_report(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fail_with(monkeypatch, ZeroDivisionError())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = rlbox("render", "local")
    assert said.code == 3
    assert said.err.startswith("Traceback (most recent call last):\n")
    assert said.err.endswith(f"\nrlbox: bug: ZeroDivisionError: \n  next:  report it with the lines above: {ISSUES}\n")


@pytest.mark.parametrize(
    ("number", "next_step"),
    [
        (errno.ENOSPC, "free space there, or name another place"),
        (errno.EIO, "name another path: `dmesg` shows the problem of this disk"),
    ],
)
def test_what_this_machine_refuses(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch, number: int, next_step: str) -> None:
    fail_with(monkeypatch, OSError(number, "no", "/some/file"))
    told = f"rlbox: error: this machine refuses: no\n  where: /some/file\n  next:  {next_step}\n"
    assert rlbox("render", "local") == Said(code=5, out="", err=told)


def test_an_interrupt(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    said = rlbox("render", "local")
    assert (said.code, said.out, said.err.strip()) == (130, "", "rlbox: interrupted")


def test_the_project_comes_from_flag_then_environment_then_folder(
    rlbox: Rlbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flag", "env"):
        Folder(tmp_path / name).target(f"in-{name}")

    def own(*words: str) -> list[str]:
        return [row["name"] for row in rlbox("targets", "--json", *words).data["found"] if row["source"] == "project"]

    assert own() == []
    monkeypatch.setenv("RLBOX_PROJECT", str(tmp_path / "env"))
    assert own() == ["in-env"]
    assert own("--project", str(tmp_path / "flag")) == ["in-flag"]


def test_json_is_one_object_with_a_schema(rlbox: Rlbox) -> None:
    lock = ["lock", "local", "--check", "--offline"]
    for words in (["targets"], ["show", "local"], ["render", "--check"], lock, ["runs"]):
        said = rlbox(*words, "--json")
        data = json.loads(said.out)
        assert (type(data), data["schema"]) == (dict, 1), words
        assert said.out == json.dumps(data, indent=2, ensure_ascii=False) + "\n"
