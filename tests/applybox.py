"""A small target for `rlbox apply`: wheels made on the fly in a store of its own, a file part, a patch of its own."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from wheelbox import make_wheel

from rlbox.app import list_rlbox_base_requirements
from rlbox.artifacts.object_store import ObjectStore
from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.target.lock import HttpFile, Lock, LockedPackageGroup, Package, compute_lock_spec_checksum, make_locked_patch

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
WORDS = b"vocabulary\n"
SPEC = """
title = "small target of the tests of apply"
[base]
bootstrap = "debian:bookworm"
packages = ["ca-certificates", "hello"]
[python]
version = "{python}"
[[stack]]
name = "tools"
packages = [{packages}]
[[http]]
name = "words"
url = "https://words.example/words.txt"
into = "/opt/words/words.txt"
{patches}
[env]
SMALL_WORDS = "it's $HOME, {more}"
[run.ulimits]
nofile = "1024:4096"
[disk]
host = "~/disk"
create = true
need_gib = 0.01
"""
PATCHES = """[[patches]]
file = "alpha.patch"
into = "/opt/venv/lib/python{python}/site-packages"
"""
PATCH = """--- a/alpha/__init__.py
+++ b/alpha/__init__.py
@@ -1 +1,2 @@
 __version__ = '1.0'
+patched = True
"""


def put(store: ObjectStore, data: bytes) -> str:
    """Put bytes into the store and return their sha256."""
    digest = hashlib.sha256(data).hexdigest()
    with store.wait_for_partial(digest) as draft:
        if not store.has(digest):
            draft.truncate()
            draft.write(data)
            draft.commit()
    return digest


def give(
    folder: Path,
    store: ObjectStore,
    versions: Mapping[str, str],
    *,
    python: str = PYTHON,
    more: str = "as it is",
    patched: bool = True,
) -> Lock:
    """Write the target `small` with a lock that fits it, and put its files into the store."""
    place = folder / "images/small"
    (place / "patches").mkdir(parents=True, exist_ok=True)
    (place / "patches/alpha.patch").write_text(PATCH)
    names = ", ".join(f'"{name}=={version}"' for name, version in versions.items())
    patches = PATCHES.format(python=python) if patched else ""
    (place / "target.toml").write_text(SPEC.format(python=python, packages=names, more=more, patches=patches))
    target = load_target_with_fix_apt_packages(Project(folder=folder), "small").target
    packages = []
    for name, version in versions.items():
        file, body = make_wheel(name, version)
        packages.append(Package(name=name, version=version, file=file, sha256=put(store, body), size=len(body)))
    lock = Lock(
        target="small",
        spec=compute_lock_spec_checksum(target, list_rlbox_base_requirements()),
        python=python,
        platform=target.python.platform,
        base="debian:bookworm",
        runtime=LockedPackageGroup(name="runtime", packages=()),
        groups=(LockedPackageGroup(name="tools", packages=tuple(packages)),),
        http=(
            HttpFile(name="words", url="https://words.example/words.txt", sha256=put(store, WORDS), size=len(WORDS)),
        ),
        patches=(make_locked_patch("alpha.patch", PATCH),) if patched else (),
    )
    (place / "lock.json").write_text(lock.to_json_text())
    return lock


IMAGE = f"registry.example/team/framework@sha256:{'0' * 64}"
HOLDS = {"torch": "2.9.1+cu129", "Flash_Attn": "2.8.1"}
ON_IMAGE = """
include = "small"
title = "small on a framework's image"
patches = []
[base]
bootstrap = ""
image = "{image}"
packages = []
holds_apt = ["hello"]
[base.holds]
"""


def hold(folder: Path, lock: Lock, image: str = IMAGE) -> None:
    """Write the target `held`, which is `small` on an image that holds `HOLDS`, with its lock."""
    place = folder / "images/held"
    place.mkdir(parents=True, exist_ok=True)
    rows = "".join(f'{name} = "{version}"\n' for name, version in HOLDS.items())
    (place / "target.toml").write_text(ON_IMAGE.format(image=image) + rows)
    spec = compute_lock_spec_checksum(
        load_target_with_fix_apt_packages(Project(folder=folder), "held").target, list_rlbox_base_requirements()
    )
    (place / "lock.json").write_text(replace(lock, target="held", spec=spec, base=image, patches=()).to_json_text())


def tree(folder: Path) -> dict[str, str]:
    """Return every path below a folder with its content and mode, but for what Python and rlbox note of a moment."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if "__pycache__" in name or path.suffix == ".lock":
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = f"{path.stat().st_mode & 0o7777:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            found[name] = "folder"
    return found
