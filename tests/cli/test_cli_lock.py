"""`rlbox lock`."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import TARGET, Folder, Rlbox, Said

from rlbox.cli.app import own_requirements
from rlbox.errors import WorkFailed
from rlbox.spec.lock import Lock, LockedGroup, Package, load_lock, lock_checksum
from rlbox.spec.target import Target

SIX = Package(name="six", version="1.16.0", sha256=("a" * 64,))
UV = Package(name="uv", version="0.9.0", sha256=("b" * 64,))


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that finds six for every group."""

    def resolve(target: Target, runtime: tuple[str, ...], sources: Any, ca: str) -> Lock:
        return Lock(
            target=target.name,
            spec=lock_checksum(target, runtime),
            runtime=LockedGroup(name="runtime", packages=(UV,)),
            groups=tuple(LockedGroup(name=group.name, packages=(SIX,)) for group in target.stack),
        )

    monkeypatch.setattr("rlbox.act.uv.resolve_lock", resolve)


WRITTEN = "tools           1 packages\nruntime         1 packages\nlock.json {}\n"


def test_writing(rlbox: Rlbox, folder: Folder, uv: None) -> None:
    folder.target("mine")
    next_step = "next: rlbox build mine\n"
    assert rlbox("lock", "mine", "--dry-run") == Said(
        code=0, out=WRITTEN.format("not written (--dry-run)"), err=next_step
    )
    assert not (folder.path / "images/mine/lock.json").exists()
    assert rlbox("lock", "mine") == Said(code=0, out=WRITTEN.format("written"), err=next_step)
    assert rlbox("lock", "mine") == Said(code=0, out=WRITTEN.format("unchanged"), err=next_step)
    lock = load_lock(folder.path / "images/mine/lock.json")
    assert lock is not None
    assert lock.groups == (LockedGroup(name="tools", packages=(SIX,)),)
    assert rlbox("lock", "mine", "--json").data == {
        "schema": 1,
        "target": "mine",
        "groups": {"tools": 1, "runtime": 1},
        "changed": False,
    }


def test_check(rlbox: Rlbox, folder: Folder, uv: None) -> None:
    folder.target("mine")
    stale = "rlbox: error: the lock of target mine is {}\n  next:  rlbox lock mine\n"
    assert rlbox("lock", "mine", "--check") == Said(code=1, out="", err=stale.format("missing"))
    rlbox("lock", "mine")
    assert rlbox("lock", "mine", "--check") == Said(code=0, out="mine  lock is current\n", err="")
    assert rlbox("lock", "mine", "--check", "--json").data == {"schema": 1, "target": "mine", "lock": "current"}
    folder.target("mine", TARGET + '[env]\nA = "1"\n')
    assert rlbox("lock", "mine", "--check").code == 0
    folder.target("mine", TARGET.replace("1.16.0", "1.17.0"))
    assert rlbox("lock", "mine", "--check") == Said(code=1, out="", err=stale.format("stale"))
    rlbox("lock", "mine")
    assert rlbox("lock", "mine", "--check").code == 0


def test_a_torn_lock_is_made_again(rlbox: Rlbox, folder: Folder, uv: None) -> None:
    """The step that the message names must work."""
    folder.target("mine")
    path = folder.write("images/mine/lock.json", '{"schema": 1, ')
    said = rlbox("lock", "mine", "--check")
    assert said == Said(
        code=2,
        out="",
        err=f"rlbox: error: {path}: not a lock file: JSONDecodeError: "
        "Expecting property name enclosed in double quotes: line 1 column 15 (char 14)\n  next:  rlbox lock mine\n",
    )
    assert rlbox("build", "mine").err == said.err
    assert rlbox("lock", "mine").code == 0
    assert rlbox("lock", "mine", "--check").code == 0


def test_the_shipped_lock(rlbox: Rlbox) -> None:
    assert rlbox("lock", "local", "--check") == Said(code=0, out="local  lock is current\n", err="")


def test_no_solution(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> None:
        raise WorkFailed("uv finds no set of packages for target mine (exit code 1)\n  | because six==9")

    monkeypatch.setattr("rlbox.act.uv.resolve_lock", none)
    folder.target("mine")
    assert rlbox("lock", "mine") == Said(
        code=1,
        out="",
        err="rlbox: error: uv finds no set of packages for target mine (exit code 1)\n  | because six==9\n",
    )


def test_rlbox_knows_its_own_requirements() -> None:
    names = own_requirements()
    assert names == tuple(sorted(names))
    assert {"click", "docker", "jinja2", "pydantic", "uv"} <= {name.split(">")[0].split("=")[0] for name in names}
