"""The wheel: what it carries, and that it works outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fakes import CHECKOUT, repository_files

pytestmark = [pytest.mark.allow("processes"), pytest.mark.whole]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of this checkout, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def rlbox(wheel: Path, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the unpacked wheel with the dependencies of this environment."""
    home = project.parent / "home"
    env = {"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": str(wheel), "COLUMNS": "80", "LANG": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-m", "rlbox", *words], cwd=project, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("folder", ["images", "jobs", "templates"])
def test_the_wheel_carries(wheel: Path, folder: str) -> None:
    there = {
        path.relative_to(wheel / "rlbox/_shipped").as_posix(): path.read_bytes()
        for path in (wheel / "rlbox/_shipped" / folder).rglob("*")
        if path.is_file()
    }
    assert there == repository_files(folder)
    assert there


def test_the_wheel_carries_the_package_and_its_data(wheel: Path) -> None:
    there = {
        path.relative_to(wheel).as_posix(): path.read_bytes()
        for path in (wheel / "rlbox").rglob("*")
        if path.is_file() and "_shipped" not in path.parts
    }
    pages = {name for name in repository_files("rlbox") if name.startswith("rlbox/docs/")}  # made in a checkout alone
    assert pages
    assert there == {name: data for name, data in repository_files("rlbox").items() if name not in pages}
    assert {"rlbox/target/defaults.toml", "rlbox/lint/drift.toml"} <= set(there)


def test_the_wheel_carries_no_leftovers(wheel: Path) -> None:
    assert [str(path) for path in wheel.rglob("*") if "__pycache__" in path.parts or path.suffix == ".pyc"] == []
    assert {path.name for path in wheel.iterdir()} == {"rlbox", next(wheel.glob("*.dist-info")).name}


def test_an_empty_folder_renders_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    project = tmp_path / "empty"
    project.mkdir()
    done = rlbox(wheel, project, "render")
    assert done.returncode == 0, done.stderr
    rendered = {
        path.relative_to(project).as_posix(): path.read_bytes() for path in project.rglob("*") if path.is_file()
    }
    names = ("Dockerfile", "compose.yaml", "onstart.sh")
    committed = [CHECKOUT / "Dockerfile.base", *(path for name in names for path in CHECKOUT.glob(f"images/*/{name}"))]
    assert rendered == {path.relative_to(CHECKOUT).as_posix(): path.read_bytes() for path in committed}
    assert rlbox(wheel, project, "render", "--check").returncode == 0


def test_a_target_of_the_user_needs_nothing_in_the_package(wheel: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "images/mine").mkdir(parents=True)
    (project / "images/mine/target.toml").write_text('include = "local"\n[env]\nMINE = "1"\n')
    before = {path: path.stat().st_mtime_ns for path in wheel.rglob("*") if path.suffix != ".pyc"}
    done = rlbox(wheel, project, "render", "mine")
    names = ("Dockerfile.base", "images/mine/Dockerfile", "images/mine/compose.yaml")
    assert (done.returncode, done.stdout) == (0, "".join(f"{name}  written\n" for name in names))
    text = (project / "images/mine/Dockerfile").read_text()
    assert 'MINE="1"' in text
    shown = [line.split()[:2] for line in rlbox(wheel, project, "targets").stdout.splitlines()]
    assert [row for row in shown if row[1] in ("local", "mine")] == [["target", "local"], ["target", "mine"]]
    after = {path: path.stat().st_mtime_ns for path in before if path.is_file()}
    assert after == {path: time for path, time in before.items() if path.is_file()}


def test_the_lock_of_the_wheel_is_current(wheel: Path, tmp_path: Path) -> None:
    """rlbox's own requirements are read from the installed distribution, and the lock was made from them."""
    done = rlbox(wheel, tmp_path, "lock", "local", "--check", "--offline")
    assert (done.returncode, done.stdout) == (0, "local  lock is current\n"), done.stderr
