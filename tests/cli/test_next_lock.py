"""What `rlbox lock` advises is done, with the real uv and git: an index and a repository of this machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import Folder
from following import Follow
from mirrorbox import MirrorServer, mirrors
from wheelbox import Index, make_wheel

from rlbox.target.lock import load_lock

pytestmark = pytest.mark.allow("sockets", "processes")
RULE = 'title = "one"\n[[rule]]\nkind = "python"\nprotocol = "index"\nurl = "{}"\n'
PART = '[[git]]\nname = "outer"\nurl = "{}"\nref = "main"\ninto = "/opt/outer"\n'
NO_SIZE = {"Content-Length": "", "Connection": "close"}
SPEC = f"""
title = "of a local index"
sources = "one"
[base]
image = "registry.example/base@sha256:{"0123456789abcdef" * 4}"
[python]
build = ["alpha"]
[[stack]]
name = "tools"
packages = ["alpha"]
"""


@pytest.fixture
def servers(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MirrorServer]]:
    """Two hosts with one wheel each, for which there are the profiles `one` and `two`; rlbox needs that wheel alone."""
    monkeypatch.setattr("rlbox.artifacts.relock.own_requirements", lambda: ("alpha",))
    name, body = make_wheel("alpha", "1.0")
    with mirrors(2) as made:
        for profile, server in zip(("one", "two"), made, strict=True):
            index = Index(server)
            index.add("alpha", name, body)
            folder.write(f"sources/{profile}.toml", RULE.format(index.url))
        folder.target("mine", SPEC)
        yield made


def edit(folder: Folder, old: str, new: str) -> None:
    path = folder.path / "images/mine/target.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_server_that_says_no_sizes(follow: Follow, folder: Folder, servers: list[MirrorServer]) -> None:
    (path,) = (path for path in servers[0].answers if path.endswith(".whl"))
    body = servers[0].answers[path].body
    servers[0].file(path, body, headers=NO_SIZE)
    step = follow("lock", "mine")
    follow.again(step, *step.options({"PROFILE": "two"}))
    lock = load_lock(folder.project.lock_file("mine"))
    assert lock
    assert [package.size for package in lock.packages()] == [len(body)] * 2


@pytest.mark.usefixtures("servers")
def test_packages_are_named(follow: Follow, folder: Folder) -> None:
    none, one = """packages = ["alpha;python_version<'3'"]""", 'packages = ["alpha"]'
    edit(folder, one, none)
    step = follow("lock", "mine")
    edit(folder, none, one)
    follow.again(step)


def git(folder: Path, *words: str) -> None:
    user = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.usefixtures("servers")
def test_a_submodule_is_files_of_a_fork(follow: Follow, folder: Folder, tmp_path: Path) -> None:
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
        git(tmp_path / name, "init", "--quiet", "--initial-branch=main")
        git(tmp_path / name, "add", ".")
        git(tmp_path / name, "commit", "--quiet", "-m", name)
    git(tmp_path / "outer", "submodule", "--quiet", "add", f"file://{tmp_path}/inner", "third/party")
    git(tmp_path / "outer", "commit", "--quiet", "-m", "with a submodule")
    edit(folder, "[[stack]]", PART.format(f"file://{tmp_path}/outer") + "[[stack]]")
    step = follow("lock", "mine")
    git(tmp_path, "clone", "--quiet", "--recurse-submodules", f"file://{tmp_path}/outer", "fork")
    git(tmp_path / "fork", "rm", "--quiet", "--cached", "third/party", ".gitmodules")
    (tmp_path / "fork/third/party/.git").unlink()
    git(tmp_path / "fork", "add", "third/party/a.txt")
    git(tmp_path / "fork", "commit", "--quiet", "-m", "with its files")
    (key,) = re.findall(r"fork in (\w+)", step.text)
    edit(folder, f'{key} = "file://{tmp_path}/outer"', f'{key} = "file://{tmp_path}/fork"')
    follow.again(step)
