"""The same lock gives the same image: twice, without network, through mirrors, on a machine in another state."""

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
from mirrorbox import MirrorServer, mirrors
from projectbox import own

from rlbox.artifacts.object_store import ObjectStore
from rlbox.target.artifact import Artifact, list_artifacts
from rlbox.target.lock import load_lock

NAME = "repeat"
BUILD = ("build", NAME, "--no-cache", "--json")
NOWHERE = "http://127.0.0.1:9"
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


@pytest.fixture(scope="module")
def digest(verified: Result) -> str:
    """The digest that every build of the target must have."""
    assert verified.code == 0, verified.err
    return str(verified.data["id"])


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
def test_another_state_of_the_machine(box: Box, digest: str, tmp_path: Path) -> None:
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
    )
    line = f"umask 077; {'hostname elsewhere; ' if os.getuid() == 0 else ''}exec {shlex.join(other.argv(*BUILD))}"
    apart = ["unshare", "--uts"] if os.getuid() == 0 else []
    done = subprocess.run([*apart, "sh", "-c", line], cwd=project, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert Result(code=0, out=done.stdout, err=done.stderr).data["id"] == digest


class Lab:
    """A Python index at an odd prefix whose files lie on another host, and an apt archive under another base."""

    def __init__(
        self, index: MirrorServer, files: MirrorServer, locked: tuple[Artifact, ...], store: ObjectStore
    ) -> None:
        self.servers = (index, files)
        self.paths: dict[str, str] = {}
        pages: dict[str, dict[str, str]] = {}
        for artifact in locked:
            body = store.path(artifact.sha256).read_bytes()
            if artifact.kind == "apt":
                path = f"/odd/apt/{artifact.origin}/{artifact.file}"
                files.file(path, body)
            else:
                path = f"/blobs/{artifact.sha256[:2]}/{artifact.file}"
                url = files.file(path, body)
                pages.setdefault(re.sub(r"[-_.]+", "-", artifact.name).lower(), {})[artifact.file] = url
            self.paths[artifact.sha256] = path
        for name, links in pages.items():
            index.index(f"/some/odd/prefix/{name}/", links)
        self.profile = (
            'title = "lab"\n'
            f'[[rule]]\nkind = "apt"\nprotocol = "archive"\nurl = "{files.url}/odd/apt"\n'
            f'[[rule]]\nkind = "python"\nprotocol = "index"\nurl = "{index.url}/some/odd/prefix"\n'
        )

    def asked(self) -> set[str]:
        """Every path that was asked for."""
        return {path for server in self.servers for path in server.asked}


@pytest.mark.slow
def test_mirrors_whose_files_have_other_addresses(box: Box, digest: str, tmp_path: Path) -> None:
    """Whatever asks elsewhere fails: the only way out is a proxy that is not there."""
    lock = load_lock(box.project / f"images/{NAME}/lock.json")
    assert lock is not None
    locked = list_artifacts(lock)
    filled = ObjectStore(tmp_path / "filled")
    assert box("fetch", NAME, "--store", str(filled.root)).code == 0
    with mirrors(2) as (index, files):
        lab = Lab(index, files, locked, filled)
        (box.project / "sources").mkdir(exist_ok=True)
        (box.project / "sources/lab.toml").write_text(lab.profile)
        result = box(
            *BUILD,
            "--sources=lab",
            HOME=str(tmp_path / "home"),
            RLBOX_STORE=str(tmp_path / "store"),
            XDG_CACHE_HOME=str(tmp_path / "cache"),
            XDG_CONFIG_HOME=str(tmp_path / "config"),
            PIP_FIND_LINKS="",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        )
        assert result.code == 0, result.err
        assert result.data["id"] == digest
        assert {lab.paths[artifact.sha256] for artifact in locked} <= lab.asked()


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
    assert re.fullmatch(r"  layer 3 \(COPY /out/ /\): opt/noise: contents differ from byte \d+", error[-2])
    assert error[-1].startswith("  next:  whole log: ")
    assert [line for line in error[1:-2] if not line.startswith("  config: ")] == []
    assert "install.sh venv" in Path(step.text.removeprefix("whole log: ")).read_text()
    script.write_text(shipped)
    follow.again(step)


@pytest.mark.slow
def test_the_shipped_target_is_the_same_image_without_network(local: Box) -> None:
    online = docker("image", "inspect", own("local"), "--format={{.Id}}").strip()
    assert local("fetch", "local").code == 0
    result = local("build", "local", "--hermetic", "--rebuild", "--json")
    assert result.code == 0, result.err
    assert result.data["id"] == online
