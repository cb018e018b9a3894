"""The build context: what is in it, its digest, and the folder that is handed to the engine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from rlbox.act.folders import cache_folder, write_atomic
from rlbox.act.plan_cache import file_key
from rlbox.plan.image import ImagePlan
from rlbox.spec.project import PACKAGE

_NOT_SHIPPED = ("__pycache__", "_shipped")


def context_entries(plan: ImagePlan, rootfs: Path | None, wheels: tuple[str, ...]) -> dict[str, str | Path]:
    """Return the context: path in it to its text, or to the file it is copied from.

    `rootfs` is the bootstrapped operating system, None for a base that is an image.
    """
    entries: dict[str, str | Path] = dict(plan.context)
    if rootfs:
        entries["rootfs.tar"] = rootfs
    entries["wheels/README"] = "Wheels that this machine has locally stand here; the folder may be empty.\n"
    entries |= {f"wheels/{Path(wheel).name}": Path(wheel) for wheel in wheels}
    return entries | {f"rlbox/{name}": path for name, path in _own_files().items()}


def _own_files() -> dict[str, Path]:
    found = {}
    for folder, folders, names in os.walk(PACKAGE):
        folders[:] = sorted(name for name in folders if name not in _NOT_SHIPPED)
        for name in names:
            if not name.endswith(".pyc"):
                path = Path(folder, name)
                found[path.relative_to(PACKAGE).as_posix()] = path
    return found


def build_digest(entries: Mapping[str, str | Path], plan: ImagePlan) -> str:
    """Return the digest of everything that decides the image: the context's paths and bytes, and the time stamp."""
    digests = FileDigests.load()
    total = hashlib.sha256(f"epoch={plan.epoch}\n".encode())
    for name in sorted(entries):
        source = entries[name]
        digest = digests.of(source) if isinstance(source, Path) else hashlib.sha256(source.encode()).hexdigest()
        total.update(f"{name}\0{digest}\n".encode())
    digests.save()
    return total.hexdigest()


class FileDigests:
    """sha256 of files, remembered by size, time stamp and inode, so that an unchanged file is not read again."""

    def __init__(self, known: dict[str, list[str]]) -> None:
        self._known = known
        self._changed = False

    @classmethod
    def load(cls) -> FileDigests:
        """Return the memory of this machine; a torn or missing one is empty."""
        try:
            known = json.loads(_memory().read_bytes())
            return cls(known if isinstance(known, dict) else {})
        except (OSError, ValueError):
            return cls({})

    def of(self, path: Path) -> str:
        """Return the digest of a file."""
        key = file_key(str(path))
        entry = self._known.get(str(path))
        if entry and entry[0] == key:
            return entry[1]
        with open(path, "rb") as file:
            total = hashlib.sha256()
            while block := file.read(1 << 20):
                total.update(block)
        self._known[str(path)] = [key, total.hexdigest()]
        self._changed = True
        return total.hexdigest()

    def save(self) -> None:
        """Write the memory when it learnt something; a full cache folder is no error."""
        if self._changed:
            try:
                write_atomic(_memory(), json.dumps(self._known))
            except OSError:
                return


def _memory() -> Path:
    return cache_folder("digests.json")


def write_context(entries: Mapping[str, str | Path], folder: Path) -> None:
    """Make `folder` hold exactly `entries`; files that are right already keep their time stamps.

    Large files are hard links where the file system allows it. Modes do not depend on the umask.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in entries.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, Path):
            _bring(source, path)
        elif not path.is_file() or path.read_bytes() != source.encode():
            write_atomic(path, source)
    _remove_others(folder, set(entries))


def _bring(source: Path, path: Path) -> None:
    facts = source.stat()
    if path.exists():
        there = path.stat()
        if there.st_ino == facts.st_ino or (there.st_size, there.st_mtime_ns) == (facts.st_size, facts.st_mtime_ns):
            return
        path.unlink()
    if facts.st_size > 1 << 20 and facts.st_mode & 0o444 == 0o444:
        try:
            os.link(source, path)
            return
        except OSError:  # another file system
            pass
    shutil.copyfile(source, path)
    path.chmod(0o755 if facts.st_mode & 0o100 else 0o644)
    os.utime(path, ns=(facts.st_mtime_ns, facts.st_mtime_ns))


def _remove_others(folder: Path, wanted: set[str]) -> None:
    for here, folders, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(here, name)
            if path.relative_to(folder).as_posix() not in wanted:
                path.unlink()
        for name in folders:
            if not any(Path(here, name).iterdir()):
                Path(here, name).rmdir()
