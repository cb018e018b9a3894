"""A kernel from lock to wheel with the real compiler: CUDA's wheels, a system of locked apt packages, a git tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from compilebox import Box, needs_spaces
from fakes import CHECKOUT, Folder, load_cases

from rlbox.artifacts.object_store import ObjectStore
from rlbox.image.compile import read_wheel_gpu_archs

CASES = load_cases("compile", "test_compile_nvcc")
SOURCE = Path(__file__).with_name("tiny")
SPEC = CASES["SPEC"]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A project whose target compiles a repository of its own, locked for real."""
    needs_spaces()
    path = tmp_path_factory.mktemp("nvcc")
    repository = path / "tiny"
    subprocess.run(["cp", "-r", SOURCE, repository], check=True)
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "tiny"], ["tag", "v1.0"]):
        subprocess.run([*git, *words], check=True)
    folder = Folder(path / "project")
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "XDG_CACHE_HOME": str(path / "cache")}
    box = Box(folder=folder, env={**env, "RLBOX_STORE": str(path / "store")})
    write(box, repository, 'archs = ["sm_80", "sm_120"]')
    return box


def write(box: Box, repository: Path, more: str) -> None:
    box.folder.target("mine", SPEC.replace("REPOSITORY", str(repository)).replace("MORE", more))
    locked = box.rlbox("lock", "mine")
    assert locked.code == 0, locked.err


def wheel(box: Box) -> Path:
    (row,) = [row for row in box.lock()["groups"][0]["packages"] if row["name"] == "tiny"]
    return ObjectStore(Path(box.env["RLBOX_STORE"])).path(row["sha256"])


@pytest.mark.slow
def test_a_wheel_for_two_gpus_is_the_same_twice(box: Box) -> None:
    done = box.rlbox("compile", "mine", "--verify")
    assert done.code == 0, done.err
    assert "the same twice" in done.out
    assert read_wheel_gpu_archs(wheel(box)) == {"sm_80", "sm_120"}
    repository = box.folder.path.parent / "tiny"
    write(box, repository, 'archs = ["sm_80", "sm_120"]\nunits = ["one*"]')
    some = box.rlbox("compile", "mine", "--verify")
    assert some.code == 0, some.err
    told = [
        line.split()[:3] for line in some.err.splitlines() if line[0] in "=✓" and line.split()[1][-3:] in (".cu", "cpp")
    ]
    first = [["=", "one.cu", "from"], ["=", "two.cu", "left"], ["=", "api.cpp", "from"]]
    assert told[:3] == first
    assert [row[:2] for row in told[3:]] == [["✓", "one.cu"], ["=", "two.cu"], ["✓", "api.cpp"]]
    subprocess.run(["unzip", "-q", str(wheel(box)), "-d", str(box.folder.path.parent / "some")], check=True)
    (library,) = (box.folder.path.parent / "some").glob("_tiny*.so")
    assert b"two(float*) was left out when this was compiled: units of [[stack.compile]]" in library.read_bytes()
