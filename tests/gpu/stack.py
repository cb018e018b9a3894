"""What a target's place is packed from, and whether what lies on the machine is the lock's.

`stack.py lock PROJECT` writes the locks of PROJECT's targets: each is that of the target which it includes.
`stack.py verify PROJECT TARGET PLACE OUT.json` compares a place with its lock and with the RECORD of every package in
it, file by file, and writes what differs; it ends with status 1 where something differs that was not said before.
"""

from __future__ import annotations

import argparse
import base64
import csv
import fnmatch
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pack
from packaging.utils import canonicalize_name

from rlbox.app import list_rlbox_base_requirements
from rlbox.config.project import Project
from rlbox.config.toml_files import load_toml
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.target.lock import Lock, compute_lock_spec_checksum, load_lock

HERE = Path(__file__).resolve().parent
SITE = "opt/venv/lib/python3.11/site-packages"
ARCH = 90
CHANGES = "changes.json"
DELTA = 1 << 18
"""From this size on a file is carried as its difference from another version of it, in bytes."""


def shipped(project: Project, name: str) -> str:
    """Return the target that a target of the proof includes: the one whose lock it has."""
    return str(load_toml(project.require_target_file(name), project)["include"])


def write_locks(folder: Path, only: str = "") -> None:
    """Write the locks of a project's targets from those of the targets that they include."""
    project = Project(folder=folder)
    for path in sorted((folder / "images").glob("*/target.toml")):
        name = path.parent.name
        lock = load_lock(project.own_or_shipped_lock_file(shipped(project, name)))
        assert lock
        if only in ("", name):
            spec = compute_lock_spec_checksum(
                load_target_with_fix_apt_packages(project, name).target, list_rlbox_base_requirements()
            )
            project.own_or_shipped_lock_file(name).write_text(
                replace(lock, target=name, spec=spec).to_json_text(), "utf-8"
            )


class Place:
    """A place where `rlbox apply` brought a target, as it is to be carried."""

    def __init__(
        self, name: str, folder: Path, told: Mapping[str, Any], machine: Machine, before: Mapping[str, Place]
    ) -> None:
        self.name, self._folder, self._told, self._machine, self._before = name, folder, told, machine, before
        self._site = folder / SITE
        self._recorded = recorded(self._site)
        self.changes: list[dict[str, str]] = []

    def rows(self) -> Iterator[pack.Row]:
        """Yield what is carried, and fill `changes` with what will differ from the lock."""
        for path in sorted(self._folder.rglob("*")):
            at = str(path.relative_to(self._folder))
            if path.is_symlink():
                yield pack.Row(path=at, to=str(path.readlink()))
            elif path.is_file() and "__pycache__" not in path.parts:
                yield from self._row(path, at)
        data = json.dumps(self.changes, indent=1).encode()
        yield pack.Row(path=CHANGES, data=lambda: data)

    def _row(self, path: Path, at: str) -> Iterator[pack.Row]:
        mode, inner = path.stat().st_mode & 0o777, at.removeprefix(f"{SITE}/")
        if inner == at:  # not a package's
            yield pack.Row(path=at, mode=mode, data=path.read_bytes)
            return
        if why := next((why for pattern, why in self._told["leave"].items() if matches(inner, pattern)), ""):
            self.changes.append({"path": inner, "change": "left out", "why": why})
            return
        if (there := self._machine.digests.get(inner)) and self._recorded.get(inner) == {there}:
            yield pack.Row(path=at, mode=mode, sha256=there, base=f"machine/{inner}")
            return
        data = self._data(path, inner)
        row = pack.Row(path=at, mode=mode, data=lambda: data)
        other = next((of for of in reversed(self._before.values()) if (of._folder / at).is_file()), None)
        if inner in self._machine.digests and path.stat().st_size >= DELTA:
            row = replace(row, base=f"machine/{inner}", base_data=partial(self._machine.read, inner))
        elif other and path.stat().st_size >= DELTA:
            row = replace(row, base=f"{other.name}/{at}", base_data=partial(other.laid, at))
        yield row

    def laid(self, at: str) -> bytes:
        """Return a file as it will lie there."""
        inner = at.removeprefix(f"{SITE}/")
        return self._data(self._folder / at, inner, note=False)

    def _data(self, path: Path, inner: str, *, note: bool = True) -> bytes:
        """Return a package's file as it is carried: thinned, stripped, or as it is."""
        data, change, why = path.read_bytes(), "", ""
        if any(matches(inner, pattern) for pattern in self._told["thin"]):
            emptied = bytearray(data)
            if count := pack.thin(emptied, ARCH):
                change, why = (
                    "thinned",
                    f"{count >> 20} of {len(data) >> 20} MiB: kernels for other GPUs than sm_{ARCH}",
                )
                data = bytes(emptied)
        elif any(matches(inner, pattern) for pattern in self._told["strip"]):
            data, change, why = stripped(path), "stripped", "symbols"
        elif hashlib.sha256(data).hexdigest() not in self._recorded.get(inner, {hashlib.sha256(data).hexdigest()}):
            change, why = "patched", "by the target's fixes, as in its image"
        if change and note:
            self.changes.append({"path": inner, "change": change, "why": why})
        return data


class Machine:
    """The machine's own packages: the wheels that it has, and those of the lock that are the same for every Python."""

    def __init__(self, wheels: Path, site: Path, told: Mapping[str, Any]) -> None:
        self.digests: dict[str, str] = {}
        self._wheels: dict[str, Path] = {}
        for path in sorted(wheels.glob("*.whl")):
            for name, digest in record_of(path).items():
                self.digests[name], self._wheels[name] = digest, path
        for name in told["same_there"]:
            (folder,) = site.glob(f"{name.replace('-', '_')}-*.dist-info")
            for row, digest in read_record((folder / "RECORD").read_text("utf-8")).items():
                if not row.startswith(folder.name):
                    self.digests[row] = digest

    def read(self, name: str) -> bytes:
        """Return a file of a wheel that the machine has."""
        with zipfile.ZipFile(self._wheels[name]) as wheel:
            return wheel.read(name)


def matches(path: str, pattern: str) -> bool:
    """Return whether a path fits a pattern: `**/` stands for any folders or none, `/**/*` for all that lies below."""
    if pattern.startswith("**/"):
        return fnmatch.fnmatch(path, pattern[3:]) or fnmatch.fnmatch(path, f"*/{pattern[3:]}")
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, pattern.replace("/**/", "/"))


def stripped(path: Path) -> bytes:
    """Return a library without its symbols."""
    with tempfile.NamedTemporaryFile() as goal:
        subprocess.run(["strip", "--strip-unneeded", "-o", goal.name, str(path)], check=True)
        return Path(goal.name).read_bytes()


def read_record(text: str) -> dict[str, str]:
    """Return the sha256 (hex) of every file that a RECORD gives one for."""
    rows = (row for row in csv.reader(text.splitlines()) if len(row) == 3 and row[1].startswith("sha256="))
    return {path: base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "==").hex() for path, digest, _ in rows}


def record_of(wheel: Path) -> dict[str, str]:
    """Return the same of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/RECORD"))
        return {
            path: digest for path, digest in read_record(file.read(name).decode()).items() if ".dist-info/" not in path
        }


def recorded(site: Path) -> dict[str, set[str]]:
    """Return what the RECORDs of an environment say of its files; of one that two packages bring, both."""
    found: dict[str, set[str]] = {}
    for path in sorted(site.glob("*.dist-info/RECORD")):
        for name, digest in read_record(path.read_text("utf-8")).items():
            found.setdefault(name, set()).add(digest)
    return found


def verify(lock: Lock, place: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what a place has of its lock and what differs, and what of that nobody said when it was packed."""
    site = place / SITE
    rows = {row["path"]: row["from"] for row in json.loads((place / pack.ROWS).read_text("utf-8"))}
    changes = json.loads((place / CHANGES).read_text("utf-8"))
    record, told = recorded(site), {row["path"] for row in changes}
    with ThreadPoolExecutor() as pool:
        found = dict(zip(record, pool.map(lambda row: fault(site / row[0], row[1]), record.items()), strict=True))
    for path, text in found.items():
        if text and path not in told and (site / path).is_symlink():  # as a fix lays it
            changes.append({"path": path, "change": "patched", "why": "by the target's fixes, as in its image"})
            told.add(path)
    wrong = [*other_versions(lock, site)]
    wrong += [
        f"{path} {text}" for path, text in found.items() if text and path not in told and "__pycache__" not in path
    ]
    sums: dict[str, Counter[str]] = {}
    for path, text in found.items():
        source = "of the machine" if rows.get(f"{SITE}/{path}") == "machine" else "carried"
        count = sums.setdefault("differs" if text else f"the same bytes, {source}", Counter())
        count["files"] += 1
        count["bytes"] += (site / path).stat().st_size if (site / path).is_file() else 0
    document = {
        "schema": 1,
        "target": lock.target,
        "lock": lock.digest_without_target_and_spec(),
        "packages": sum(len(group.packages) for group in lock.groups),
        "files": sums,
        "differs": [row for row in changes if found.get(row["path"], "is no package's")],
    }
    return document, wrong


def other_versions(lock: Lock, site: Path) -> Iterator[str]:
    """Yield every package that an environment has in another version than the lock, or without it."""
    due = {canonicalize_name(package.name): package.version for group in lock.groups for package in group.packages}
    here = {}
    for folder in site.glob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        here[canonicalize_name(name)] = version
    for name in sorted({*due, *here}):
        if due.get(name) != here.get(name):
            yield f"{name} is {here.get(name, 'absent')}, and {due.get(name, 'absent')} in the lock"


def fault(path: Path, digests: set[str]) -> str:
    """Return what is wrong with a file that should have one of these sha256."""
    if not path.is_file():
        return "is not there"
    with path.open("rb") as file:
        return "" if hashlib.file_digest(file, "sha256").hexdigest() in digests else "is another"


def main() -> None:
    """Do what the first word says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("lock")
    one.add_argument("project", type=Path)
    two = verbs.add_parser("verify")
    two.add_argument("project", type=Path)
    two.add_argument("target")
    two.add_argument("place", type=Path)
    two.add_argument("out", type=Path)
    told = parser.parse_args()
    if told.verb == "lock":
        write_locks(told.project)
        return
    lock = load_lock(Project(folder=told.project).own_or_shipped_lock_file(told.target))
    assert lock
    document, wrong = verify(lock, told.place)
    told.out.write_text(json.dumps(document, indent=1), "utf-8")
    print(f"{told.target}: {document['packages']} packages at the versions of the lock {document['lock'][:12]}")
    for name, count in document["files"].items():
        print(f"  {name}: {count['files']} files, {count['bytes'] >> 20} MiB")
    for kind in sorted({row["change"] for row in document["differs"]}):
        rows = [row for row in document["differs"] if row["change"] == kind]
        print(f"  {kind}: {len(rows)} files, as {rows[0]['path']} ({rows[0]['why']})")
    if wrong:
        sys.exit(f"stack: error: {len(wrong)} files are not the lock's: {'; '.join(wrong[:10])}")


if __name__ == "__main__":
    main()
