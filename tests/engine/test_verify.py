"""The same lock gives the same image: twice, without network, on a machine in another state."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from enginebox import CHECKOUT, TINY, Box, Result, docker
from following import Follow
from projectbox import own

NAME = "repeat"
BUILD = ("build", NAME, "--no-cache", "--json")
CLIENT_SETTINGS = {
    ".config/pip/pip.conf": "[global]\nno-cache-dir = true\nuser = true\n[install]\nupgrade = true\n",
    ".config/uv/uv.toml": '[pip]\ncompile-bytecode = true\nlink-mode = "symlink"\n',
    ".gitconfig": "[core]\n\tautocrlf = true\n",
    ".wgetrc": "timestamping = on\n",
}


def made_box(project: Path, data: Path) -> Box:
    (project / f"images/{NAME}").mkdir(parents=True)
    (project / f"images/{NAME}/target.toml").write_text(TINY)
    box = Box(project=project, data=data)
    locked = box("lock", NAME)
    assert locked.code == 0, locked.err
    return box


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A locked target of this module's own."""
    yield made_box(tmp_path_factory.mktemp("repeat"), tmp_path_factory.mktemp("disk"))
    docker("rmi", "--force", own(NAME))


@pytest.fixture(scope="module")
def verified(box: Box) -> Result:
    """What `--verify` said; online."""
    return box("build", NAME, "--verify", "--json")


def layer_digests() -> list[str]:
    """The layers of the image as it is tagged now: what differs is told by its place in the Dockerfile."""
    return docker("image", "inspect", own(NAME), "--format={{range .RootFS.Layers}}{{println .}}{{end}}").split()


@pytest.fixture(scope="module")
def digest(verified: Result) -> str:
    """The digest that every build of the target must have."""
    assert verified.code == 0, verified.err
    return str(verified.data["id"])


@pytest.fixture(scope="module")
def layers(digest: str) -> list[str]:
    return layer_digests()


def test_two_builds_without_cache_are_one(verified: Result) -> None:
    assert verified.code == 0, verified.err
    assert verified.data["state"] == "verified"
    assert f"verified: both builds have the digest {verified.data['id']}\n" in verified.err
    assert ".verify" not in docker("images", "--format={{.Repository}}:{{.Tag}}")


def test_a_hermetic_build(box: Box, digest: str) -> None:
    assert box("fetch", NAME).code == 0  # a hermetic build fetches nothing
    result = box(*BUILD, "--hermetic")
    assert result.code == 0, result.err
    assert result.data["id"] == digest


@pytest.mark.slow
def test_another_state_of_the_machine(box: Box, digest: str, layers: list[str], tmp_path: Path) -> None:
    """Store, caches, home, settings of clients, umask, time zone, language, host name, project folder: all others."""
    home = tmp_path / "home"
    for name, text in CLIENT_SETTINGS.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    project = tmp_path / "elsewhere"
    for path in sorted(box.project.rglob("*"), reverse=True):
        if path.is_file():
            (project / path.relative_to(box.project)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, project / path.relative_to(box.project))
    other = replace(box, project=project)
    env = other.env(
        RLBOX_STORE=str(tmp_path / "store"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        XDG_CONFIG_HOME=str(home / ".config"),
        HOME=str(home),
        TZ="Asia/Kathmandu",
        LC_ALL="C.UTF-8",
        LANG="tr_TR.UTF-8",
        PYTHONHASHSEED="1",
        PYTHONDONTWRITEBYTECODE="" if os.environ.get("PYTHONDONTWRITEBYTECODE") else "1",
    )
    line = f"umask 077; {'hostname elsewhere; ' if os.getuid() == 0 else ''}exec {shlex.join(other.argv(*BUILD))}"
    apart = ["unshare", "--uts"] if os.getuid() == 0 else []
    done = subprocess.run([*apart, "sh", "-c", line], cwd=project, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert layer_digests() == layers
    assert Result(code=0, out=done.stdout, err=done.stderr).data["id"] == digest


@pytest.mark.slow
def test_what_varies_is_named_with_its_layer(tmp_path: Path, follow: Follow) -> None:
    """A template of the project's own puts something else into each build; the log has it, and it is taken out."""
    for name in ("own", "data"):
        (tmp_path / name).mkdir()
    box = made_box(tmp_path / "own", tmp_path / "data")
    shipped = (CHECKOUT / "templates/scripts/install.sh").read_text()
    begin = "venv)\n    mkdir -p /out/opt\n"
    assert shipped.count(begin) == 1
    script = box.project / "templates/scripts/install.sh"
    script.parent.mkdir(parents=True)
    script.write_text(shipped.replace(begin, begin + "    head -c 4096 /dev/urandom >/out/opt/noise\n"))
    follow.rlbox = box
    step = follow("build", NAME, "--verify")
    result = step.said
    assert (result.code, result.out) == (1, ""), result.err
    error = result.err.partition("rlbox: error: ")[2].splitlines()
    differ = rf"two builds of {NAME} differ: sha256:[0-9a-f]{{64}} and sha256:[0-9a-f]{{64}}"
    assert re.fullmatch(differ, error[0]), result.err
    assert error[-3] == "  layer 3 (COPY /out/ /)"
    assert error[-1].startswith("  next:  full log: ")
    assert "install.sh venv" in Path(step.text.removeprefix("full log: ")).read_text()
    script.write_text(shipped)
    follow.again(step)


@pytest.mark.slow
def test_the_shipped_target_is_the_same_image_without_network(local: Box) -> None:
    online = docker("image", "inspect", own("local"), "--format={{.Id}}").strip()
    assert local("fetch", "local").code == 0
    result = local("build", "local", "--hermetic", "--rebuild", "--json")
    assert result.code == 0, result.err
    assert result.data["id"] == online
