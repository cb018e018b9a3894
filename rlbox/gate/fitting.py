"""Which files fit the path of a rule, whatever lies there: rings of links, folders nested without end."""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlbox.job.gate_rule import WILD
from rlbox.system.safe_files import walk_files

_DEEP = "**"


def fitting(path: str) -> list[Path]:
    """Return what fits a path with wild cards, sorted; `**` enters no link, nor folders nested deeper than 32."""
    parts = Path(path).parts
    if _DEEP not in parts:
        return [Path(found) for found in sorted(glob.glob(path))]
    first = parts.index(_DEEP)
    base, wanted = str(Path(*parts[:first])) if first else ".", parts[first:]
    bases = sorted(glob.glob(base)) if WILD.search(base) else [base]
    found = (Path(one, *below) for one in bases for below in _below(Path(one)) if _fits(below, wanted))
    return sorted(set(found))


def files_at(path: Path) -> Iterator[Path]:
    """Yield the regular file at `path`, or all of them below the folder there; links to folders are not followed."""
    if path.is_dir():
        below = (path / name for name, _ in walk_files(path.resolve()))
        yield from (file for file in below if _is_regular(file))
    elif _is_regular(path):
        yield path


def _below(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the paths below a folder, its own, which is empty, and those of folders too."""
    if folder.is_dir():
        yield ()
        yield from (tuple(name.split("/")) for name, _ in walk_files(folder.resolve(), folders=True))


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a path fits; names that begin with a dot fit only what begins with one, as a shell has it."""
    if not wanted:
        return not parts
    if wanted[0] == _DEEP:
        open_parts = next((n for n, part in enumerate(parts) if part.startswith(".")), len(parts))
        return any(_fits(parts[n:], wanted[1:]) for n in range(open_parts + 1))
    if not parts or parts[0].startswith(".") > wanted[0].startswith("."):
        return False
    return fnmatch.fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
