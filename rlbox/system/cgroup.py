"""A control group of a run's own, where the machine lets us make one: what is in it belongs to the run.

The supervisor of a run in place enters it before it starts anything, so every process of the run is born in it, and
none can leave by a session, a title or an environment of its own. It limits nothing. In a rented container
/sys/fs/cgroup is read-only as a rule: then session, process tree and marks say alone what belongs to the run.
Sources: Linux cgroups(7); Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_PREFIX = "rlbox-run-"
_INNER = "rlbox-sandbox-"
"""Groups that the run's own sandboxes make below it."""
PROCS_FILE = "cgroup.procs"
_V1 = ("freezer", "pids")
"""Hierarchies of version 1 whose groups change nothing for what is in them."""


class RunCgroup:
    """The group of one run, by the name and place of its directory: another disk may hold a run of the same name.

    One that cannot be made has no members and changes nothing.
    """

    def __init__(self, run_dir: Path) -> None:
        place = hashlib.sha256(str(run_dir.parent).encode("utf-8", "replace")).hexdigest()[:8]
        self._name = f"{_PREFIX}{run_dir.name}-{place}"
        self._bases = tuple(_without_ours(folder) for _, folder in find_own_cgroups(("", *_V1)))

    def create_and_enter(self) -> bool:
        """Make the group and put this process into it; return whether that worked."""
        for base in self._bases:
            _forget_empty(base)
            try:
                (base / self._name).mkdir(exist_ok=True)
                (base / self._name / PROCS_FILE).write_text(str(os.getpid()))
            except OSError:
                with contextlib.suppress(OSError):
                    (base / self._name).rmdir()
                continue
            return True
        return False

    def leave_and_remove(self) -> None:
        """Put this process back where it came from, and remove the group when nothing else is in it."""
        for base in self._bases:
            if (base / self._name).is_dir():
                with contextlib.suppress(OSError):
                    (base / PROCS_FILE).write_text(str(os.getpid()))
                    _remove(base / self._name)

    def list_other_pids(self) -> set[int]:
        """Return the ids of the processes in the group, the caller's own not among them."""
        found: set[int] = set()
        for base in self._bases:
            with contextlib.suppress(OSError, ValueError):
                for path in (base / self._name, *(base / self._name).glob(f"{_INNER}*")):
                    found |= {int(line) for line in (path / PROCS_FILE).read_text().split()}
        return found - {0, os.getpid()}


class OwnCgroup(NamedTuple):
    """A control group that this process is in; the controller is empty for version 2."""

    controller: str
    directory: Path


def find_own_cgroups(controllers: Iterable[str]) -> Iterator[OwnCgroup]:
    """Yield each group that this process is in, in the order given."""
    with contextlib.suppress(OSError):
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = list(_mounts(Path("/proc/self/mountinfo").read_text()))
        for wanted in controllers:
            for _, known, path in groups:
                if wanted in known.split(","):
                    found = ((root, top) for names, root, top in mounts if wanted in names)
                    yield from (OwnCgroup(wanted, folder) for root, top in found for folder in _at(top, root, path))


def _mounts(text: str) -> Iterator[tuple[set[str], str, Path]]:
    """Yield the controllers (empty for version 2), root and mount point of each mounted hierarchy."""
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        kind, _, options = tail.partition(" ")
        root, top = head.split(" ")[3:5]
        if kind in ("cgroup", "cgroup2"):
            yield {""} if kind == "cgroup2" else set(options.rpartition(" ")[2].split(",")), root, Path(top)


def _at(top: Path, root: str, path: str) -> Iterator[Path]:
    below = path.removeprefix(root.rstrip("/")) if path.startswith(root) else path
    folder = top / below.strip("/")
    if folder.is_dir():
        yield folder


def _without_ours(folder: Path) -> Path:
    return folder.parent if folder.name.startswith(_PREFIX) else folder


def _remove(folder: Path) -> None:
    for inner in folder.glob(f"{_INNER}*"):
        inner.rmdir()
    folder.rmdir()


def _forget_empty(base: Path) -> None:
    """Remove what killed supervisors have left; the kernel keeps a group that anything is in."""
    for folder in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove(folder)
