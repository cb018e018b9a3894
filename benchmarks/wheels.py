"""The stack of the image benchmarks, and its wheels: fetched once with rlbox itself, then kept in the user's cache.

`rlbox/bench` in the cache folder holds them, about half a gigabyte; it can be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.place import Place, run, smallest_target
from rlbox.app import list_rlbox_base_requirements
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.system.files import cache_path, write_atomic
from rlbox.target.lock import load_lock

TARGET = "stack"
SPEC, SMALL_SPEC = (Path(__file__).with_name(name) for name in ("stack.toml", "small.toml"))
SMALL_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Moving:
    """A package whose version is changed: every version is one that a build has not seen, until they are used up."""

    name: str
    group: str
    versions: tuple[str, ...]

    @property
    def first(self) -> str:
        """The version that the stack begins with."""
        return self.versions[0]


LEAF = Moving(name="transformers", group="leaf", versions=("4.55.4", "4.55.3", "4.55.2", "4.55.1", "4.55.0"))
BOTTOM = Moving(name="numpy", group="base", versions=("2.2.6", "2.2.5", "2.2.4", "2.2.3"))


def spec_file(place: Place) -> Path:
    """Return the spec that fits the scale of a place."""
    return place.pick(SPEC, SMALL_SPEC)


def stack_text(spec: Path, versions: Mapping[str, str], mark: str = "") -> str:
    """Return the target's spec with other versions of some packages, and `mark` behind the name of every group."""
    text = spec.read_text(encoding="utf-8")
    for name, version in versions.items():
        text = re.sub(rf'"{name}==[^"]+"', f'"{name}=={version}"', text)
    return re.sub(r'^name = "(.+)"$', rf'name = "\1{mark}"', text, flags=re.MULTILINE)


def group_pins(text: str, group: str) -> list[str]:
    """Return the requirements of a group of a spec."""
    found = re.search(rf'^name = "{group}[^"]*"\npackages = \[(.*?)^\]', text, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"]+)"', found[1]) if found else []


def wheel_folder(place: Place) -> Path:
    """Return the folder of all wheels, with their sha256 in its `digests.json`; what is missing is fetched first.

    A fetch that was interrupted goes on where it stopped: rlbox's store keeps what is whole. Those of a small place are
    made there, but for what rlbox itself needs.
    """
    if place.small:
        return _small_folder(place)
    folder = cache_path("bench")
    if _known(folder)[0] != _made_from():
        with Place() as place:
            _fetch(place, folder)
    return folder


def wheel_digests(folder: Path) -> Mapping[str, str]:
    """Return the sha256 of every wheel in the folder by its file name."""
    return _known(folder)[1]


def _known(folder: Path) -> tuple[str, dict[str, str]]:
    """Return what the wheels were chosen by, and the sha256 of each; nothing while some are missing."""
    try:
        found = json.loads((folder / "digests.json").read_bytes())
        return str(found["made_from"]), dict(found["files"])
    except (OSError, ValueError, KeyError):
        return "", {}


def _made_from() -> str:
    parts = (SPEC.read_text(encoding="utf-8"), repr(LEAF), repr(BOTTOM), *list_rlbox_base_requirements())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _small_folder(place: Place) -> Path:
    folder, model = place.folder / "wheels", place.kept.get(smallest_target)
    folder.mkdir()
    store = resolve_store_dir(None)
    fetch = place.rlbox("fetch", model.name, "--store", str(store), "--project", str(model.parents[1]))
    run(fetch.argv, env=fetch.env, cwd=fetch.cwd)
    lock = load_lock(model / "lock.json")
    digests = {package.file: package.sha256 for package in (lock.list_python_packages() if lock else ())}
    for name, digest in digests.items():
        ObjectStore(store).link_object_replacing_path(digest, folder / name)
    pins = dict(pin.split("==") for pin in re.findall(r'"(\S+==\S+)"', SMALL_SPEC.read_text(encoding="utf-8")))
    moving = {(one.name, version) for one in (LEAF, BOTTOM) for version in one.versions}
    for name, version in sorted({pin for pin in pins.items() if pin[0] != "six"} | moving):
        file = f"{name}-{version}-py3-none-any.whl"
        digests[file] = _make_wheel(folder / file, name, version)
    write_atomic(folder / "digests.json", json.dumps({"made_from": "", "files": digests}))
    return folder


def _make_wheel(path: Path, name: str, version: str) -> str:
    """Write a wheel of bytes that nothing makes smaller, the same at each time, and return its sha256."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = '{version}'\n".encode(),
        f"{name}/data.bin": random.Random(path.name).randbytes(SMALL_BYTES),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: benchmarks\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(zipfile.ZipInfo(file, (2025, 1, 1, 0, 0, 0)), data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _fetch(place: Place, folder: Path) -> None:
    """Lock and fetch the stack with every version of what moves, and link the wheels into `folder`."""
    root = resolve_store_dir(None)
    place.env |= {"RLBOX_STORE": str(root), "RLBOX_SOURCES": os.environ.get("RLBOX_SOURCES", "direct")}
    folder.mkdir(parents=True, exist_ok=True)
    store = ObjectStore(root)
    digests: dict[str, str] = {}
    spec = place.project / "images" / TARGET / "target.toml"
    spec.parent.mkdir(parents=True)
    for number in range(max(len(LEAF.versions), len(BOTTOM.versions))):
        versions = {moving.name: moving.versions[number % len(moving.versions)] for moving in (LEAF, BOTTOM)}
        spec.write_text(stack_text(SPEC, versions))
        for verb in ("lock", "fetch"):
            run(place.rlbox(verb, TARGET).argv, env=place.env, cwd=place.project)
        lock = load_lock(spec.with_name("lock.json"))
        digests |= {package.file: package.sha256 for package in (lock.list_python_packages() if lock else ())}
    for name, digest in digests.items():
        (folder / name).unlink(missing_ok=True)
        store.link_object_replacing_path(digest, folder / name)
    write_atomic(folder / "digests.json", json.dumps({"made_from": _made_from(), "files": digests}))
