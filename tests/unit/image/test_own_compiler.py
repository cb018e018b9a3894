"""Objects of this machine's own compiler are kept apart from those of the one that it had before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import CHECKOUT
from locks import WHOLE

from rlbox.artifacts.object_store import ObjectStore
from rlbox.config.project import Project
from rlbox.errors import MachineError
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.image import compile_env as rooms
from rlbox.target.lock import Deb
from rlbox.values import Outcome


def test_another_compiler_is_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = []
    for version in ("gcc version 12.2.0", "gcc version 14.2.0", "gcc version 12.2.0"):
        monkeypatch.setattr(
            rooms, "run_command", lambda command, said=version: Outcome(command=command, exit_code=0, stderr=said)
        )
        monkeypatch.setattr(Path, "exists", lambda path: True)
        marks.append(rooms.host_compiler_cache_suffix_or_empty(WHOLE))
    assert marks[0] == marks[2] != marks[1]


def test_the_compiler_of_the_lock_is_in_its_digest() -> None:
    gcc = Deb(name="g++", version="4:12", archive="debian", path="pool/g++.deb", sha256="c" * 64, size=9)
    assert rooms.host_compiler_cache_suffix_or_empty(replace(WHOLE, toolchain=(gcc,))) == ""


@pytest.mark.parametrize(
    ("there", "next_step"),
    [((), "apt-get install g++"), (("g++", "c++"), "install Python 3.11 with its headers")],
)
def test_what_this_machine_lacks_to_compile(
    there: tuple[str, ...], next_step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rooms, "run_command", lambda command: Outcome(command=command, exit_code=1))
    target = load_target_with_fix_apt_packages(Project(folder=CHECKOUT), "a800-cn").target
    monkeypatch.setattr(Path, "exists", lambda path: path.name in there)
    with pytest.raises(MachineError) as refused:
        rooms.ensure_rootfs_unpacked_or_use_host(target, WHOLE, ObjectStore(tmp_path))
    assert refused.value.next_step == next_step


def test_a_machine_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "run_command", lambda command: Outcome(command=command, exit_code=1, stderr="refused\n"))
    with pytest.raises(MachineError, match="so the build cannot run without network: refused"):
        rooms.can_use_user_namespace_or_raise_if_none()
