"""The memory of plans: used only while nothing that a plan is made from changed, and never trusted when torn."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, TARGET, Folder

from rlbox.files.act.folders import cache_folder
from rlbox.image.act.plans import file_key, image_plan, load_cached_plan
from rlbox.image.plan import ImagePlan


def plan(folder: Folder, name: str = "mine") -> ImagePlan:
    return dataclasses.replace(image_plan(folder.project, name), tag="")  # whatever the project is called


def remembered(folder: Folder, name: str = "mine") -> ImagePlan | None:
    return load_cached_plan(folder.project, name)


def memory() -> Path:
    [path] = cache_folder("plans").iterdir()
    return path


def test_an_unchanged_target_is_not_planned_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.target("mine")
    first = plan(folder)
    assert remembered(folder) == first
    monkeypatch.setattr("rlbox.target.load.load_target", None)
    assert plan(folder) == first


def test_nothing_is_remembered_at_first(folder: Folder) -> None:
    folder.target("mine")
    assert remembered(folder) is None
    assert not cache_folder("plans").exists()


CHANGES: dict[str, Callable[[Folder], object]] = {
    "spec": lambda f: f.target("mine", 'include = "under"\n[env]\nA = "2"\n'),
    "spec of the same size": lambda f: f.target("mine", 'include = "under"\n[env]\nA = "3"\n'),
    "include": lambda f: f.target("under", TARGET + "# \n"),
    "new lock": lambda f: f.write("images/mine/lock.json", "{}"),
    "new template": lambda f: f.write("templates/base.j2", "FROM rlbox.os AS rlbox.tools\n"),
    "new template in a folder that was there": lambda f: f.write("templates/scripts/install.sh", "x\n"),
    "template changed": lambda f: f.write("templates/mine.j2", "2"),
    "patch": lambda f: f.write("images/mine/patches/one.diff", "2"),
    "template gone": lambda f: (f.path / "templates/mine.j2").unlink(),
    "time alone": lambda f: os.utime(f.path / "images/mine/target.toml", (1, 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(folder: Folder, change: str) -> None:
    folder.target("under")
    patches = '[[patches]]\nfile = "one.diff"\ninto = "/opt"\n'
    folder.target("mine", f'include = "under"\n[env]\nA = "1"\n{patches}')
    folder.write("images/mine/patches/one.diff", "1")
    folder.write("templates/mine.j2", "1")
    folder.write("templates/scripts/other.sh", "1")
    plan(folder)
    assert remembered(folder) is not None
    CHANGES[change](folder)
    assert remembered(folder) is None


def test_a_new_file_that_overrides_a_shipped_one(folder: Folder) -> None:
    shipped = plan(folder, "local")
    assert remembered(folder, "local") == shipped
    folder.target("local")
    assert remembered(folder, "local") is None
    assert plan(folder, "local").title == "smallest target"


def test_a_new_file_that_overrides_a_shipped_include(folder: Folder) -> None:
    folder.target("mine", 'include = "local"\ntitle = "t"\n')
    plan(folder)
    folder.target("local")
    assert remembered(folder) is None
    assert plan(folder).layers == ("tools",)


def test_a_new_lock_of_a_shipped_target(folder: Folder) -> None:
    """A target that rlbox ships is locked in the user's project folder."""
    assert plan(folder, "local").lock == "current"
    folder.lock("local", python="3.9")
    assert remembered(folder, "local") is None
    assert plan(folder, "local").lock.startswith("stale: made for Python 3.9")


def test_folders_do_not_share(folder: Folder, tmp_path: Path) -> None:
    folder.target("mine")
    other = Folder(tmp_path / "other")
    other.target("mine", TARGET.replace("smallest", "other"))
    assert (plan(folder).title, plan(other).title) == ("smallest target", "other target")
    assert (plan(folder).title, plan(other).title) == ("smallest target", "other target")


def test_another_version_of_rlbox(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.target("mine")
    plan(folder)
    monkeypatch.setattr("rlbox.image.act.plans.__version__", "9.9.9")
    assert remembered(folder) is None


def test_what_a_plan_is_made_from(folder: Folder) -> None:
    folder.target("mine")
    inputs = set(plan(folder).inputs)
    own = [CHECKOUT / "rlbox" / name for name in ("target/target.py", "image/plan.py", "target/defaults.toml")]
    shipped = [
        CHECKOUT / name for name in ("templates", "templates/base.j2", "templates/scripts", "templates/Dockerfile.j2")
    ]
    mine = [folder.path / name for name in ("images/mine/target.toml", "images/mine/lock.json", "templates")]
    assert {str(path) for path in (*own, *shipped, *mine)} <= inputs
    assert any(name.endswith("METADATA") for name in inputs), "rlbox's own requirements are part of the lock's state"


DAMAGES: dict[str, Callable[[dict[str, Any]], str]] = {
    "empty": lambda memory: "",
    "no JSON": lambda memory: "{",
    "a list": lambda memory: "[]",
    "null": lambda memory: "null",
    "cut": lambda memory: json.dumps(memory)[:-20],
    "no context": lambda memory: json.dumps(
        {**memory, "plan": {key: value for key, value in memory["plan"].items() if key != "context"}}
    ),
    "zeros at the end": lambda memory: json.dumps(memory)[:-20] + chr(0) * 20,
    "no plan": lambda memory: json.dumps({**memory, "plan": None}),
    "no stamp": lambda memory: json.dumps({**memory, "stamp": None}),
    "more fields": lambda memory: json.dumps({**memory, "plan": {**memory["plan"], "x": 1}}),
    "other types": lambda memory: json.dumps({**memory, "plan": {**memory["plan"], "container": 5}}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_torn_memory_is_ignored(folder: Folder, damage: str) -> None:
    folder.target("mine")
    whole = plan(folder)
    memory().write_text(DAMAGES[damage](json.loads(memory().read_text())))
    assert remembered(folder) is None
    assert plan(folder) == whole
    assert remembered(folder) == whole


def test_a_cache_that_cannot_be_written_is_no_error(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.target("mine")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert plan(folder).title == "smallest target"
    assert remembered(folder) is None


def test_keys_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert file_key(str(path)) == ""
    path.write_text("x")
    first = file_key(str(path))
    path.chmod(0o700)
    assert first != file_key(str(path)) != ""
