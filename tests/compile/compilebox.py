"""A source that builds itself with this machine's C++ compiler, a target and a lock for it: nothing is fetched."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, Folder, Said, fitting_lock

from rlbox.app import list_rlbox_base_requirements
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import MachineError
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.image.compile_env import can_use_user_namespace_or_raise_if_none
from rlbox.system.files import compute_file_sha256
from rlbox.target.lock import CompileInputs, Package, compute_compile_inputs_sha256

Wheel = tuple[str, bytes]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BACKEND = """
import base64, hashlib, os, subprocess, sys, time, zipfile

def unit(name, *words):
    print(f"[{len(made) + 1}/{{total}}] {name}".format(total=3), flush=True)
    subprocess.run(["c++", "-O2", "-fPIC", *words, "-c", name, "-o", name + ".o"], check=True)
    made.append(name + ".o")

made = []

def build_wheel(out, settings=None, metadata=None):
    BODY
    subprocess.run(["c++", "-shared", *made, "-o", "_small.so"], check=True)
    name = "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(out, name), "w") as wheel:
        for file in sorted(("_small.so", "small.py"), key=lambda one: hash(one) * os.getpid() % 7):
            wheel.write(file)
        wheel.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\n")
        wheel.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("small-1.0.dist-info/RECORD", "")
    return name
"""
UNITS = """
    for name in ("one.cpp", "two.cpp", "three.cpp"):
        unit(name)
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
SPEC = f"""
title = "compiles"
[hardware]
ARCH
[base]
image = "registry.example/base@sha256:{"0123456789abcdef" * 4}"
[python]
version = "{PYTHON}"
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[[stack.compile]]
name = "small"
version = "1.0"
needs = []
MORE
[disk]
host = "~/disk"
create = true
"""


def needs_spaces() -> None:
    """Skip where this machine cannot compile as rlbox does."""
    if not all(Path("/usr/bin", name).exists() for name in ("c++", "g++")):
        pytest.skip("this machine has no C++ compiler")
    try:
        can_use_user_namespace_or_raise_if_none()
    except MachineError:
        pytest.skip("this machine does not allow namespaces for a build")


@dataclass(frozen=True, kw_only=True)
class Box:
    """A project, a store and a cache of their own, for command lines in processes of their own."""

    folder: Folder
    env: dict[str, str]

    @property
    def cache(self) -> Path:
        """What rlbox keeps of builds."""
        return Path(self.env["XDG_CACHE_HOME"], "rlbox/compile")

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command line in the project."""
        argv = [sys.executable, "-m", "rlbox", *words, "--project", str(self.folder.path)]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def rlbox(self, *words: str) -> Said:
        """Run a command line to its end."""
        process = self.begin(*words)
        out, err = process.communicate(timeout=300)
        return Said(code=process.returncode, out=out, err=err)

    def lock(self) -> dict[str, Any]:
        """The lock as JSON."""
        return json.loads((self.folder.path / "images/mine/lock.json").read_text())

    def wheel(self) -> dict[str, Any]:
        """What the lock says of the wheel."""
        (row,) = [row for row in self.lock()["groups"][0]["packages"] if row["name"] == "small"]
        return row

    def object_folder(self) -> Path:
        """Where the one build that there was keeps its objects."""
        (found,) = (self.cache / "objects").iterdir()
        return found


def make_box(
    path: Path,
    body: str = UNITS,
    more: str = "",
    arch: str = "",
    tools: Sequence[Wheel] = (),
    needs: str = "",
    **files: str,
) -> Box:
    """Return a project whose target `mine` compiles a source with the backend's `body` and further `files`.

    `tools` are the wheels that its build imports, all of version 1.0, and `needs` what its spec says of them.
    """
    folder = Folder(path / "project")
    env = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "XDG_CACHE_HOME": str(path / "cache"),
        "RLBOX_STORE": str(path / "store"),
    }
    sources = {f"{name}.cpp": f"int {name}() {{ return {len(name)}; }}\n" for name in ("one", "two", "three")}
    contents = {"pyproject.toml": PROJECT, "backend.py": BACKEND.replace("BODY", body.strip()), "small.py": ""}
    archive = _archive(path / "small-1.0.tar.gz", {**contents, **sources, **files})
    digest = _put(ObjectStore(Path(env["RLBOX_STORE"])), archive)
    spec = (
        SPEC.replace("MORE", more)
        .replace("needs = []", f"needs = [{needs}]")
        .replace("ARCH", f'gpu = "G"\ngpus = 1\narch = "{arch}"' if arch else "")
    )
    folder.target("mine", spec)
    target = load_target_with_fix_apt_packages(folder.project, "mine").target
    ((group, entry),) = target.compile_entries
    source = Package(name="small", version="1.0", file=archive.name, sha256=digest, size=archive.stat().st_size)
    locked = tuple(_tool(ObjectStore(Path(env["RLBOX_STORE"])), path / name, body) for name, body in tools)
    recipe = compute_compile_inputs_sha256(target, entry, source, locked, ())
    row = CompileInputs(name="small", group=group.name, inputs_sha256=recipe, source=source, tools=locked)
    folder.write(
        "images/mine/lock.json",
        replace(fitting_lock(target, list_rlbox_base_requirements()), compiled=(row,)).to_json_text(),
    )
    return Box(folder=folder, env=env)


def _tool(store: ObjectStore, path: Path, body: bytes) -> Package:
    path.write_bytes(body)
    name = path.name.partition("-")[0].replace("_", "-")
    return Package(name=name, version="1.0", file=path.name, sha256=_put(store, path), size=len(body))


def _archive(path: Path, files: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"small-1.0/{name}")
            entry.size, entry.mtime = len(text.encode()), 1_700_000_000
            entry.uid = entry.gid = 4321  # of whoever packed it
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def _put(store: ObjectStore, path: Path) -> str:
    store.root.mkdir(parents=True, exist_ok=True)
    return store.add_file_if_matching_return_actual_sha256(path, compute_file_sha256(path))
