"""The wheel: what it carries, and that it works outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from fakes import CHECKOUT, repository_files
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from venvbox import index_environment, run_uv

from rlbox.cli.root import COMMANDS

pytestmark = [pytest.mark.allow("processes"), pytest.mark.whole]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution of this checkout, built without network."""
    folder = tmp_path_factory.mktemp("built")
    argv = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    """The unpacked wheel."""
    site = built[0].parent / "site"
    with zipfile.ZipFile(built[0]) as archive:
        archive.extractall(site)
    return site


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment of its own that has the wheel and what the lock names for it, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    wanted = folder / "wanted.txt"
    wanted.write_text(locked(needed("rlbox")))
    env = index_environment()
    for words in (
        ("venv", "--python", sys.executable, str(folder / "venv")),
        ("pip", "install", "--no-deps", "--require-hashes", "-r", str(wanted)),
        ("pip", "install", "--no-deps", str(built[0])),
        ("pip", "check"),
    ):
        run_uv(folder, env, *words)
    return folder / "venv/bin"


def needed(name: str) -> set[str]:
    """Return the distributions of this environment that `name` needs, itself left out."""
    found: set[str] = set()
    asked = [name]
    while asked:
        for line in requires(asked.pop()) or ():
            one = Requirement(line)
            if (one.marker is None or one.marker.evaluate({"extra": ""})) and canonicalize_name(one.name) not in found:
                found.add(canonicalize_name(one.name))
                asked.append(one.name)
    return found


def locked(names: set[str]) -> str:
    """Return what `requirements.lock` says of some distributions, with their hashes."""
    parts = re.split(r"\n(?=\S)", (CHECKOUT / "requirements.lock").read_text(encoding="utf-8"))
    found = [part for part in parts if canonicalize_name(re.split("[=;@ ]", part)[0]) in names]
    assert len(found) >= len(names) > 10
    return "\n".join(found) + "\n"


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
    assert there == repository_files("rlbox")
    assert {"rlbox/target/defaults.toml", "rlbox/lint/drift.toml"} <= set(there)


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


def test_an_index_would_take_both(built: tuple[Path, Path]) -> None:
    words = ["-m", "twine", "--no-color", "check", "--strict", *map(str, built)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_licence_and_types_are_in_both(built: tuple[Path, Path]) -> None:
    licence = (CHECKOUT / "LICENSE").read_bytes()
    with zipfile.ZipFile(built[0]) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert archive.read(name) == licence
        assert "rlbox/py.typed" in archive.namelist()
        metadata = archive.read(name.replace("licenses/LICENSE", "METADATA")).decode()
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Author: rlbox developers"):
        assert f"\n{line}\n" in metadata
    assert metadata.count("\nProject-URL: ") == 5
    with tarfile.open(built[1]) as archive:
        top = f"{built[1].name.removesuffix('.tar.gz')}/"
        file = archive.extractfile(f"{top}LICENSE")
        assert file
        assert file.read() == licence
        names = {name.removeprefix(top) for name in archive.getnames()}
    assert {"rlbox/py.typed", "pyproject.toml", "README.md", "SECURITY.md", "Dockerfile.base"} <= names
    assert not {name.partition("/")[0] for name in names} & {"tests", "benchmarks", "scripts", ".ci"}


def test_the_wheel_of_the_source_distribution_is_the_same(built: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path)
    [source] = tmp_path.iterdir()
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(argv, cwd=source, capture_output=True, check=True)
    [again] = tmp_path.glob("*.whl")
    assert again.read_bytes() == built[0].read_bytes()


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_links_of_a_readme_are_relative_and_exist(name: str) -> None:
    """The repository is not published yet: a whole address would be dead."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (CHECKOUT / name).read_text(encoding="utf-8"))
    assert len(links) > 30
    assert [link for link in links if not (CHECKOUT / link).is_file()] == []


def test_an_installed_wheel_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    project = tmp_path / "empty"
    project.mkdir()
    env = {"PATH": f"{installed}:{os.defpath}", "HOME": str(tmp_path / "home"), "COLUMNS": "80", "LANG": "C.UTF-8"}
    env["DOCKER_HOST"] = f"unix://{tmp_path}/none.sock"  # what an engine has of images is not asked

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, check=False)

    helps = "import sys; from rlbox.cli import main; sys.exit(any([main([word, '--help']) for word in sys.argv[1:]]))"
    done = run(str(installed / "python"), "-c", helps, *COMMANDS)
    assert (done.returncode, done.stderr, done.stdout.count("Usage: rlbox ")) == (0, "", len(COMMANDS))
    for words in (["--help"], ["show", "local"], ["render"], ["run", "smoke", "--dry-run"], ["targets"]):
        done = run("rlbox", *words)
        assert (done.returncode, "rlbox: " in done.stderr) == (0, False), (words, done.stderr)
    done = run("rlbox", "lint")
    assert (done.returncode, "pip install 'rlbox[lint]'" in done.stderr) == (2, True), done.stderr
