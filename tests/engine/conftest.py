"""Fixtures on a real engine: a small target of its own, built once, and the shipped `local` target."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterbox import Hosts
from clusterstand import as_before, built, healthy
from enginebox import TINY, Box, containers, image_id, wait_until
from following import Follow
from projectbox import own

BUILT = "tiny.id"
"""The file of the project that holds the id of the image `tiny`, which a test may change or take away."""


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """An engine must answer: these tests are run for real or fail."""
    done = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True)
    assert done.returncode == 0, f"no engine answers; rlbox engine up starts one\n{done.stderr}"


@pytest.fixture(scope="session")
def tiny_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the built target `tiny`."""
    project = tmp_path_factory.mktemp("project")
    (project / "images/tiny").mkdir(parents=True)
    (project / "images/tiny/target.toml").write_text(TINY)
    box = Box(project=project, data=tmp_path_factory.mktemp("disk"))
    for words in (("lock", "tiny"), ("build", "tiny", "--rebuild")):
        result = box(*words)
        assert result.code == 0, result.err
    (project / BUILT).write_text(image_id(own("tiny")))
    return project


@pytest.fixture
def tiny(tiny_project: Path, tmp_path: Path) -> Iterator[Box]:
    """The target `tiny` with a data disk of the test's own; leaves no container behind."""
    project = tmp_path / "project"
    shutil.copytree(tiny_project, project, dirs_exist_ok=True)
    data = tmp_path / "data"
    data.mkdir()
    box = Box(project=project, data=data)
    if image_id(own("tiny")) != (tiny_project / BUILT).read_text():
        result = box("build", "tiny")
        assert result.code == 0, result.err
    yield box
    wait_until(lambda: containers(box.data) == [], "the end of every container of the test", 30)


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Python compiled in the first run, for the disks of the others: an empty disk costs a run half a minute."""
    return tmp_path_factory.getbasetemp() / "bytecode"


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The shipped target's image with all of this rlbox: one that is there may hold an older half that decides none."""
    box = Box(project=tmp_path_factory.mktemp("shipped"), data=tmp_path_factory.mktemp("no-disk"))
    result = box("build", "local", "--rebuild")
    assert result.code == 0, result.err


@pytest.fixture
def local(shipped: None, tmp_path: Path, bytecode: Path) -> Iterator[Box]:
    """The shipped target, built, in an empty project folder (everything comes from what rlbox ships), with a disk."""
    for name in ("project", "data"):
        (tmp_path / name).mkdir()
    if bytecode.is_dir():
        shutil.copytree(bytecode, tmp_path / "data/cache/bytecode")
    box = Box(project=tmp_path / "project", data=tmp_path / "data")
    result = box("build", "local")
    assert result.code == 0, result.err
    yield box
    if not bytecode.is_dir() and (box.data / "cache/bytecode").is_dir():
        shutil.copytree(box.data / "cache/bytecode", bytecode)
    wait_until(lambda: containers(box.data) == [], "the end of every container of the test", 30)


@pytest.fixture(scope="session")
def eval_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of the target `local`, whose vLLM evaluations ask."""
    if named := os.environ.get("RLBOX_EVAL_IMAGE"):
        return named
    box = Box(project=tmp_path_factory.mktemp("project"), data=tmp_path_factory.mktemp("disk"))
    result = box("build", "local", "--json")
    assert result.code == 0, result.err
    return str(result.data["image"])


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts, and a project whose targets, the module's NAMES, are built here."""
    with built(tmp_path_factory.mktemp("project"), request.module.NAMES) as found:
        yield found


@pytest.fixture
def hosts(request: pytest.FixtureRequest, two: Hosts, follow: Follow) -> Iterator[Hosts]:
    """The hosts; whatever a test did, and however it ended: after `down` they are as they were."""
    with as_before(two, follow, request.module.NAMES):
        yield two


@pytest.fixture
def standing(hosts: Hosts) -> None:
    """A cluster of the target `pair` on the hosts."""
    healthy(hosts("cluster", "up", "pair", "--json"))
