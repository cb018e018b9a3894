"""What an image is made of besides wheels: git trees, files, source archives, patches, apt packages on a base image."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from enginebox import Box, docker
from fakes import load_cases
from projectbox import own
from registrybox import registry_running

CASES = load_cases("engine", "test_parts")
SIX = "/opt/venv/lib/python3.11/site-packages"
TARGET = CASES["TARGET"]
SIX_PATCH = """--- a/six.py
+++ b/six.py
@@ -10,3 +10,3 @@
 __author__ = "Benjamin Peterson <benjamin@python.org>"
-__version__ = "1.16.0"
+__version__ = "1.16.0+patched"
\x20
"""
TREE_PATCH = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1,2 @@\n hello\n+{}\n"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a server with one file."""
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def parts(tmp_path: Path, site: str) -> Box:
    """A project with the locked target `parts`."""
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "a.txt").write_text("hello\n")
    (repository / "link").symlink_to("a.txt")
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*who, "commit", "-qm", "one")):
        subprocess.run(["git", "-C", str(repository), *words], check=True)
    folder = tmp_path / "project/images/parts"
    (folder / "patches").mkdir(parents=True)
    (folder / "target.toml").write_text(TARGET.format(six=SIX, repository=repository, url=site))
    (folder / "patches/six.patch").write_text(SIX_PATCH)
    (folder / "patches/tree.patch").write_text(TREE_PATCH.format("world"))
    box = Box(project=tmp_path / "project", data=tmp_path / "data")
    box.data.mkdir()
    result = box("lock", "parts")
    assert result.code == 0, result.err
    return box


def inside(tag: str, script: str) -> str:
    return docker("run", "--rm", "--network=none", tag, "sh", "-c", script)


def digest(box: Box, *words: str) -> str:
    result = box("build", *words, "--json")
    assert result.code == 0, result.err
    return str(result.data["id"])


def test_trees_files_source_archives_and_patches(parts: Box) -> None:
    online = digest(parts, "parts")
    assert inside(own("parts"), "python -c 'import six, antlr4; print(six.__version__)'") == "1.16.0+patched\n"
    assert inside(own("parts"), "cat /opt/src/tree/link; /opt/tool/run") == "hello\nworld\nran\n"
    assert parts("fetch", "parts").code == 0
    assert digest(parts, "parts", "--hermetic", "--no-cache") == online
    assert (
        "six.patch: opt/venv/lib/python3.11/site-packages/six.py: applied, 1 hunk"
        in max(Path.home().glob(".cache/rlbox/logs/build-parts-*")).read_text()
    )


def test_an_image_lists_its_patches_and_takes_them_back(parts: Box) -> None:
    digest(parts, "parts")
    record = json.loads(inside(own("parts"), "cat /opt/rlbox/share/patches.json"))
    rows = [(patch["name"], row["path"], row["state"]) for patch in record["patches"] for row in patch["files"]]
    assert rows == [
        ("six.patch", f"{SIX[1:]}/six.py", "applied"),
        ("tree.patch", "opt/src/tree/a.txt", "applied"),
    ]
    back = "python3 /opt/rlbox/libexec/apply_patches.py --reverse && cat /opt/src/tree/a.txt && ls /opt/rlbox/share"
    shown = inside(own("parts"), back)
    assert "six.patch: opt/venv/lib/python3.11/site-packages/six.py: restored, as it was" in shown
    assert "\nhello\n" in shown
    assert "patches.json" not in shown


def test_a_changed_patch_needs_a_new_lock_and_moves_one_layer(parts: Box) -> None:
    digest(parts, "parts")
    before = layers(own("parts"))
    (parts.project / "images/parts/patches/tree.patch").write_text(TREE_PATCH.format("moon"))
    refused = parts("build", "parts")
    assert refused.code == 2
    assert "the lock of target parts is stale: tree.patch changed since" in refused.err
    assert parts("lock", "parts").code == 0
    digest(parts, "parts")
    after = layers(own("parts"))
    assert len(set(after) - set(before)) == 2, "the patches' layer, and the one that holds the lock"
    assert inside(own("parts"), "cat /opt/src/tree/a.txt") == "hello\nmoon\n"


def test_a_patch_that_fits_nowhere_ends_the_build(parts: Box) -> None:
    (parts.project / "images/parts/patches/tree.patch").write_text(TREE_PATCH.format("x").replace("hello", "goodbye"))
    assert parts("lock", "parts").code == 0
    result = parts("build", "parts")
    assert result.code == 1
    assert "tree.patch: opt/src/tree/a.txt: hunk 1 fits nowhere" in result.err


def layers(tag: str) -> list[str]:
    return list(json.loads(docker("image", "inspect", tag, "--format={{json .RootFS.Layers}}")))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry."""
    with registry_running(tmp_path) as host:
        yield host


@pytest.fixture
def based(tmp_path: Path, tiny_project: Path, registry: str) -> Iterator[Box]:
    """A project with a target on a base image that only the registry has, and that knows an apt archive."""
    told = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True)
    archive = next(line for line in told.stdout.split() if line.rstrip("/").endswith("/debian"))
    name = f"{registry}/rlbox-test/base-{os.getpid()}"
    (tmp_path / "base").mkdir()
    (tmp_path / "base/Dockerfile").write_text(
        f"FROM {own('tiny')}\nRUN echo 'deb {archive} bookworm main' >/etc/apt/sources.list && \\\n"
        "    echo 'VERSION = \"1.0\"' >/usr/lib/python3/dist-packages/held.py && \\\n"
        "    python3 -m venv --without-pip /venv/main && \\\n"
        "    echo 'VERSION = \"2.0\"' >/venv/main/lib/python3.11/site-packages/held_apart.py\n"
    )
    docker("buildx", "build", "--quiet", "--provenance=false", f"--tag={name}:1", str(tmp_path / "base"))
    docker("push", "--quiet", f"{name}:1")
    pinned = json.loads(docker("image", "inspect", f"{name}:1", "--format={{json .RepoDigests}}"))
    image = next(row for row in pinned if row.startswith(name))
    docker("rmi", f"{name}:1")
    folder = tmp_path / "project/images/based"
    folder.mkdir(parents=True)
    text = f'[base]\nimage = "{image}"\npackages = ["jq"]\n[[stack]]\nname = "tools"\npackages = ["six==1.16.0"]\n'
    (folder / "target.toml").write_text('title = "on a base image"\n' + text)
    box = Box(project=tmp_path / "project", data=tmp_path / "disk")  # the registry keeps its own in data
    box.data.mkdir()
    yield box
    docker("rmi", "--force", own("based"))


@pytest.mark.slow
def test_a_base_image_gets_its_locked_apt_packages(based: Box) -> None:
    result = based("lock", "based")
    assert result.code == 0, result.err
    lock = json.loads((based.project / "images/based/lock.json").read_text())
    assert "jq" in [deb["name"] for deb in lock["apt"]]
    online = digest(based, "based")
    assert inside(own("based"), "jq --version").startswith("jq-")
    assert based("fetch", "based").code == 0
    assert digest(based, "based", "--hermetic", "--no-cache") == online


@pytest.mark.slow
def test_the_stack_lies_over_what_a_base_image_holds(based: Box) -> None:
    """Its Python packages are not locked and not installed again, and the stack's interpreter finds them."""
    spec = based.project / "images/based/target.toml"
    text = spec.read_text().replace('packages = ["jq"]\n', 'holds_apt = ["jq"]\n[base.holds]\nsix = "1.16.0"\n')
    spec.write_text(text.replace('packages = ["six==1.16.0"]', 'packages = ["python-dateutil==2.9.0.post0"]'))
    result = based("lock", "based")
    assert result.code == 0, result.err
    lock = json.loads((based.project / "images/based/lock.json").read_text())
    assert [row["name"] for group in lock["groups"] for row in group["packages"]] == ["python-dateutil"]
    assert lock["apt"] == [], "no file of an archive: the image itself was not needed for the lock"
    digest(based, "based")
    assert (
        inside(own("based"), "python -c 'import held; print(held.__file__)'")
        == "/usr/lib/python3/dist-packages/held.py\n"
    )
    assert inside(own("based"), "python -c 'import sys; print(sys.prefix)'") == "/opt/venv\n"


@pytest.mark.slow
def test_the_stack_lies_over_an_environment_of_a_base_image(based: Box) -> None:
    """An image whose Python lies in an environment of its own has its packages there, not in the Python below."""
    spec = based.project / "images/based/target.toml"
    text = spec.read_text().replace('packages = ["jq"]\n', 'holds_apt = ["jq"]\n[base.holds]\nidna = "3.4"\n')
    spec.write_text(text.replace("[[stack]]", '[python]\ninterpreter = "/venv/main/bin/python"\n[[stack]]'))
    assert based("lock", "based").code == 0
    digest(based, "based")
    said = inside(own("based"), "python -c 'import six, held_apart; print(six.__file__, held_apart.__file__)'")
    assert said.split() == [
        "/opt/venv/lib/python3.11/site-packages/six.py",
        "/venv/main/lib/python3.11/site-packages/held_apart.py",
    ]
