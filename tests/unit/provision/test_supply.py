"""Where uv takes the packages of an applied target from: the store alone, or an index and what no index has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlbox.provision import venv as stack
from rlbox.provision.venv import PackageSource
from rlbox.values import Command, Outcome


@pytest.fixture
def user_options(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands, none of them run; files that are there only while they would run are looked at."""
    commands: list[Command] = []

    def run(command: Command, *told: str) -> Outcome:
        names = sorted(path.name for path in Path(command.cwd).iterdir()) if command.cwd else []
        commands.append(replace(command, env={"files": " ".join(names)}))
        return Outcome(command=command, exit_code=0)

    monkeypatch.setattr(stack, "check_command", run)
    return commands


def ask(supply: PackageSource, tmp_path: Path) -> Any:
    desired: Any = SimpleNamespace(
        python="3.11",
        base=None,
        interpreter="",
        build_constraints="",
        requirements="six==1.16.0\n",
        layout=SimpleNamespace(venv=""),
    )
    stack._run_uv(desired, supply, tmp_path / "venv")


def words(command: Command) -> list[str]:
    return [word for word in command.argv if word.startswith("--") and word not in ("--quiet", "--python")]


def test_from_the_store_alone(user_options: list[Command], tmp_path: Path) -> None:
    ask(PackageSource(store_files={"six.whl": tmp_path / "six"}, is_offline=True), tmp_path)
    make, sync = user_options
    assert "--offline" in make.argv
    assert words(sync) == ["--offline", "--require-hashes", "--no-index", "--find-links"]
    assert sync.argv[sync.argv.index("--find-links") + 1] == sync.cwd
    assert "six.whl" in sync.env["files"]


def test_from_an_index_and_what_none_has(user_options: list[Command], tmp_path: Path) -> None:
    """A compiled wheel, or one by address, is shown from the store beside the folders of this machine's own wheels."""
    ask(PackageSource(store_files={"flash_attn.whl": tmp_path / "f"}, wheel_dirs=("/own",)), tmp_path)
    make, sync = user_options
    assert "--offline" not in make.argv
    assert words(sync) == ["--require-hashes", "--find-links", "--find-links"]
    places = [sync.argv[at + 1] for at, word in enumerate(sync.argv) if word == "--find-links"]
    assert places == [sync.cwd, "/own"]
    assert "flash_attn.whl" in sync.env["files"]


def test_from_an_index_alone(user_options: list[Command], tmp_path: Path) -> None:
    ask(PackageSource(), tmp_path)
    assert words(user_options[1]) == ["--require-hashes"]
