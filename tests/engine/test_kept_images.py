"""`rlbox images` on the real engine: what nobody needs goes, with its bytes; what a container is made from stays."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import Box, docker
from following import Follow
from projectbox import PROJECT

from rlbox.config.project import Project
from rlbox.image.names import PROJECT_NAME_VARIABLE, try_record_project_dir
from rlbox.system.files import state_path

CONTAINER, NAME = "rlbox-test-kept", f"rlbox/kept:{PROJECT}"
GONE = "kept-0a1b2c"


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A project of its own, whose target's images are empty ones with the label that rlbox gives."""
    (tmp_path / "project/images/kept").mkdir(parents=True)
    (tmp_path / "project/images/kept/target.toml").write_text('include = "local"\n')
    return Box(project=tmp_path / "project", data=tmp_path / "disk")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[str]]:
    """Names of two images: of this project, and of one whose folder is gone."""
    names = [NAME, f"rlbox/kept:{GONE}"]
    for name in names:
        (tmp_path / "Dockerfile").write_text(
            f'FROM scratch\nLABEL rlbox.target=kept word="{name} {tmp_path}"\nCMD ["x"]\n'
        )
        docker("build", "--quiet", "--tag", name, str(tmp_path))
    yield names
    for name in names:
        subprocess.run(["docker", "image", "rm", "--force", name], capture_output=True, check=False)


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project that named an image, and whose folder was removed since."""
    folder = tmp_path / "left"
    folder.mkdir()
    monkeypatch.setenv(PROJECT_NAME_VARIABLE, GONE)
    try_record_project_dir(Project(folder=folder))
    monkeypatch.setenv(PROJECT_NAME_VARIABLE, PROJECT)
    folder.rmdir()
    yield
    state_path("projects", f"{GONE}.json").unlink()


def there(name: str) -> bool:
    return docker("image", "ls", "--quiet", name) != ""


@pytest.mark.usefixtures("left")
def test_what_is_of_a_project_that_is_gone_goes(box: Box, made: list[str]) -> None:
    removed = box("prune", "--dry-run", "--json").data["images"]
    assert (made[1] in removed, made[0] in removed) == (True, False)
    done = box("images", "rm", made[1], "--yes")
    assert (done.code, there(made[1]), there(made[0])) == (0, False, True), done.err


def test_what_a_container_is_made_from_stays(box: Box, made: list[str], follow: Follow) -> None:
    follow.rlbox = box
    docker("create", "--name", CONTAINER, made[0])
    try:
        step = follow("images", "rm", "kept", "--yes")
        line = step.text.partition(",")[0]
        assert line == f"docker rm {CONTAINER}"
        subprocess.run(shlex.split(line), capture_output=True, check=True)
        follow.again(step)
    finally:
        subprocess.run(["docker", "rm", "--force", CONTAINER], capture_output=True, check=False)
    assert not there(made[0])
