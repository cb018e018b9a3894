"""`rlbox apply` on a machine like AutoDL's: its own framework adopted, the locked image's unpacked, or refused.

No Docker, a foreign environment first in PATH, a shell that exports all sorts of things, a small disk for data, mirrors
of registry and package index on loopback, the first of which breaks. Image, layers and registry are real.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from applybox import WORDS, give, hold, lay_package
from enginebox import Result, docker
from mirrorbox import mirrors
from projectbox import own
from registrybox import Proxy, proxied, registry_running
from rentedbox import HOSTILE, ODD, Machine, rented
from wheelbox import Index

from rlbox.artifacts.objects import Store
from rlbox.engine import oci

OWN = "/opt/micromamba/envs/slime"
DATA = "/root/autodl-tmp"
TEAM = f"rlbox-test/framework-{os.getpid()}"
WORSE = (
    *HOSTILE,
    "LD_PRELOAD=/nowhere/libhostile.so",
    "PYTHONHOME=/usr",
    "PYTHONSTARTUP=/nowhere.py",
    "PIP_INDEX_URL=http://127.0.0.1:9/simple",
    "UV_LINK_MODE=symlink",
    "CUDA_HOME=/nowhere/cuda",
)
TORCH = "import ctypes\n__version__ = '2.9.1+cu129'\nctypes.CDLL('libframework.so.1')\n"
DOCKERFILE = (
    f"FROM {own('tiny')}\n"
    + """\
RUN rm -rf /opt/venv /opt/rlbox && mkdir -p /usr/local/framework/lib /usr/local/cuda-12/bin && \\
    cp /usr/lib/x86_64-linux-gnu/libz.so.1 /usr/local/framework/lib/libframework.so.1 && \\
    echo /usr/local/framework/lib >/etc/ld.so.conf.d/framework.conf && ln -s /usr/local/cuda-12 /usr/local/cuda && \\
    ln /usr/bin/env /usr/local/cuda-12/bin/nvcc && head -c 600M /dev/zero >/zeros
COPY old /usr/local/lib/python3.11/dist-packages/
RUN rm -rf /usr/local/lib/python3.11/dist-packages/torch-2.9.0.dist-info
COPY site /usr/local/lib/python3.11/dist-packages/
COPY flash /src/flash
RUN echo /src/flash >/usr/local/lib/python3.11/dist-packages/flash.pth
ENV CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin DEBIAN_FRONTEND=noninteractive
"""
)
LOOK = """
title = "what a stage in place finds"
target = "held"
[[stages]]
name = "only"
title = "the lock's packages on the framework, and no variable of the shell"
command = ["{python}", "-c", "import alpha, flash_attn as f, os; print(alpha.__version__, f.torch.__version__, \
f.torch.__file__.split('/torch/')[0], *map(os.getenv, ('DEBIAN_FRONTEND', 'LD_PRELOAD', 'PYTHONHOME', 'RAY_ADDRESS')))"]
[stages.gate]
require = [{ pattern = "^1.0 2.9.1[+]cu129 /[^ ]* None None None None$" }]
"""


@dataclass(frozen=True)
class Given:
    """What a machine is given: a folder with project, store and framework; the registry and the bytes of its layers."""

    folder: Path
    broken: Proxy
    layers: int


@pytest.fixture(scope="module")
def given(tiny_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    """A framework's image in a real registry, the target on it, and mirrors of all that its lock names."""
    folder = tmp_path_factory.mktemp("given")
    project = folder / "project"
    with (
        registry_running(tmp_path_factory.mktemp("registry")) as host,
        proxied(host) as broken,
        mirrors(1) as (server,),
    ):
        digest, layers = _push(folder, host)
        lock = give(project, Store(folder / "made"), {"alpha": "1.0"}, python="3.11", patched=False)
        hold(project, lock, f"registry.example/{TEAM}@{digest}")
        index, made = Index(server), Store(folder / "made")
        for package in lock.groups[0].packages:
            index.add(package.name, package.file, made.path(package.sha256).read_bytes())
        server.file("/words.txt", WORDS)
        _profile(project, index.url, server.url, broken.host, host)
        _own(folder / "project/own", "2.9.0+cu129")
        (folder / "project/jobs").mkdir()
        (folder / "project/jobs/look.toml").write_text(LOOK)
        (folder / "odd").write_text(ODD)
        (folder / "store").mkdir()
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        folder.parent.chmod(0o755)
        yield Given(folder, broken, layers)


def _push(folder: Path, host: str) -> tuple[str, int]:
    """Build and push the image; return its digest, and the bytes of its layers."""
    context = folder / "context"
    lay_package(context / "old", "torch", "2.9.0", "old = True\n")
    lay_package(context / "site", "torch", "2.9.1+cu129", TORCH)
    lay_package(context / "flash", "flash-attn", "2.8.1", "import torch\n")
    (context / "flash/flash_attn-2.8.1.dist-info").rename(context / "site/flash_attn-2.8.1.dist-info")
    (context / "Dockerfile").write_text(DOCKERFILE)
    name = f"{host}/{TEAM}"
    docker("buildx", "build", "--quiet", "--provenance=false", f"--tag={name}:1", str(context))
    docker("push", "--quiet", f"{name}:1")
    pinned = json.loads(docker("image", "inspect", f"{name}:1", "--format={{json .RepoDigests}}"))
    docker("rmi", f"{name}:1")
    digest = next(row for row in pinned if row.startswith(name)).partition("@")[2]
    url = f"http://{host}/v2/{TEAM}/manifests/{digest}"
    asked = urllib.request.Request(url, headers={"Accept": ", ".join(oci.MANIFESTS)})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        manifest = oci.parse_manifest(answer.read())
    return digest, sum(layer.size for layer in manifest.layers)


def _profile(project: Path, index: str, files: str, broken: str, host: str) -> None:
    """Write the profile `near`: mirrors on loopback, of which the registry's first breaks."""
    rules = (
        ("python", "index", index, ""),
        ("http", "host", f"{files}/", "https://words.example/"),
        ("oci", "host", f"http://{broken}", "registry.example"),
        ("oci", "host", f"http://{host}", "registry.example"),
    )
    text = "".join(
        f'[[rule]]\nkind = "{kind}"\nprotocol = "{protocol}"\nurl = "{url}"\n'
        + (f'match = "{match}"\n' if match else "")
        for kind, protocol, url, match in rules
    )
    (project / "sources").mkdir()
    (project / "sources/near.toml").write_text('title = "mirrors on loopback"\n' + text)


def _own(site: Path, version: str) -> None:
    """Lay packages as a machine's own environment has them, torch in another patch version."""
    lay_package(site, "torch", version, f"__version__ = '{version}'\n")
    lay_package(site, "flash-attn", "2.8.1", "import torch\n")


@pytest.fixture
def machine(given: Given) -> Iterator[Machine]:
    """A machine whose data disk has room for what its layers are expected to be, and not for what they are."""
    room = int(given.layers * 3.5) + (48 << 20)
    words = (f"--tmpfs={DATA}:exec,size={room}", "--tmpfs=/mnt/tiny:size=16m")
    with rented(given.folder, words, network="host") as made:
        made.run("sh", "-c", f"python3 -m venv --without-pip {OWN} && "
                 f"cp -r /srv/project/own/. {OWN}/lib/python3.11/site-packages/")  # fmt: skip
        yield made


def call(machine: Machine, *words: str, check: bool = True) -> Result:
    own = (f"RLBOX_DATA={DATA}", f"RLBOX_STORE={DATA}/store", "RLBOX_PROJECT=/srv/project")
    return machine.rlbox(*words, env=(*WORSE, *own), check=check)


@pytest.mark.slow
def test_refused_adopted_completed_and_run(machine: Machine, given: Given) -> None:
    before = machine.files()
    _refused(machine)
    assert machine.files() == before
    _adopted(machine)
    given.broken.fail, given.broken.times = ("/blobs/", 503, b"broken", {}), 1000
    _completed(machine)
    call(machine, "apply", "held", "--remove")
    assert _lasting(machine.files()) == _lasting(before)
    left = machine.run("sh", "-c", f"ls -d {DATA}/rlbox/* 2>/dev/null || true").out
    assert left == ""


def _lasting(files: dict[str, str]) -> dict[str, str]:
    """Files without what Python compiles, and what apt notes of a package that came and went."""
    return {
        path: row for path, row in files.items() if not re.search(r"/__pycache__/|^/var/(log|lib/(apt|dpkg))/", path)
    }


def _refused(machine: Machine) -> None:
    """Each part that is missing is named, and where it was looked for."""
    words = ("apply", "held", "--yes", "--sources", "near")
    for more, says in (
        (
            (),
            "2 of 2 packages are missing (torch 2.9.1+cu129, flash-attn 2.8.1)\n  where: /usr/bin/python3 ",
        ),
        (
            ("--python", f"{OWN}/bin/python"),
            f"torch is 2.9.0+cu129, and 2.9.1+cu129 is wanted\n  where: {OWN}/bin/python",
        ),
        (("--unpack", "--offline"), "the store lacks 1 files of the lock"),
        (("--unpack", "--data", "/mnt/tiny"), "the disk is too full for the base image: 16.8 MB free, about "),
    ):
        said = call(machine, *words, *more, check=False)
        assert (said.code in (1, 5), says in said.err) == (True, True), said.err


def _adopted(machine: Machine) -> None:
    said = call(machine, "apply", "held", "--yes", "--sources", "near", "--python", f"{OWN}/bin/python",
                "--accept", "torch==2.9.0+cu129", "--json")  # fmt: skip
    assert (said.data["state"], said.data["checks"]["failed"]) == ("applied", []), said.err
    again = call(machine, "apply", "held", "--json")
    assert (again.data["state"], again.data["steps"]) == ("unchanged", [])


def _completed(machine: Machine) -> None:
    """The image takes the place of the machine's own, though a mirror breaks and the disk turns out too small."""
    words = ("apply", "held", "--yes", "--sources", "near", "--unpack")
    full = call(machine, *words, check=False)
    assert (full.code, "the disk is full" in full.err) == (5, True), full.err
    docker("exec", "--privileged", machine.name, "mount", "-o", "remount,size=3g", DATA)
    said = call(machine, *words, "--json")
    assert (said.data["state"], said.data["checks"]["failed"]) == ("applied", []), said.err
    root = f"{DATA}/rlbox/base/image"
    assert machine.run("stat", "--format=%s", f"{root}/zeros").out == f"{600 << 20}\n"
    assert f"importing 2 packages of {root}/usr/bin/python3" in said.err
    laid = machine.files()
    again = call(machine, "apply", "held", "--json")
    assert (again.data["state"], again.data["steps"]) == ("unchanged", [])
    assert machine.files() == laid
    ran = call(machine, "run", "look", "--place", "here", check=False)
    assert ran.code == 0, ran.out + ran.err
    shown = machine.run("sh", "-c", f"grep -rh '^1.0 ' {DATA}/runs").out
    assert f" {root}/usr/local/lib/python3.11/dist-packages " in shown
    env = machine.run("sh", "-c", ". /opt/rlbox/libexec/init.sh && command -v nvcc && echo $CUDA_HOME").out
    assert env.split() == [f"{root}/usr/local/cuda/bin/nvcc", f"{root}/usr/local/cuda"]
    found = call(machine, "doctor", "held", "--gpus", "none", "--json", check=False)
    ids = {row["id"] for row in found.data["findings"]}
    assert not ids & {"interactive-prompts", "shared-pid-namespace", "ray-address"}, found.data
