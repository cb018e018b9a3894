"""A working directory as one file, the same bytes for the same content, named as Ray names its packages."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rlbox.amounts import MIB, size_text
from rlbox.errors import SpecError
from rlbox.i18n import _

EXCLUDED = (".git", ".venv", "venv", "__pycache__", "ckpts", "checkpoints", "outputs", "wandb")
"""Left out without being told: what git, Python and trainers make there."""

MOST = 512 * MIB
"""Source: ray/_private/runtime_env/packaging.py: a larger package is refused."""

_SHOWN = 3


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path below the directory is left out: by a name in it; where a pattern has a `/`, by itself."""
    names = path.split("/")
    heads = ["/".join(names[:end]) for end in range(1, len(names) + 1)]
    return any(
        any(fnmatch.fnmatchcase(head, pattern.strip("/")) for head in heads)
        if "/" in pattern.strip("/")
        else any(fnmatch.fnmatchcase(name, pattern.strip("/")) for name in names)
        for pattern in patterns
    )


def check_size(folder: str, sizes: Mapping[str, int]) -> None:
    """Refuse what Ray would not take; `sizes` are the bytes of each file, by its path below the folder.

    Raises
    ------
    SpecError
        It is too large; the largest parts are named.
    """
    total = sum(sizes.values())
    if total <= MOST:
        return
    parts: Counter[str] = Counter()
    for path, size in sizes.items():
        parts[path.split("/")[0]] += size
    largest = parts.most_common(_SHOWN)
    named = ", ".join(f"{name} {size_text(size)}" for name, size in largest)
    raise SpecError(
        _("the working directory has {total}, and Ray takes {most}: {named}").format(
            total=size_text(total), most=size_text(MOST), named=named
        ),
        where=folder,
        next_step=_("--exclude {largest}; what a job reads belongs on the nodes' data disks").format(
            largest=largest[0][0]
        ),
    )


_EPOCH = (1980, 1, 1, 0, 0, 0)
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class WorkFiles:
    """The files of a working directory that go along: their bytes by path; `left` what is no file."""

    folder: Path
    sizes: dict[str, int]
    left: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all."""
        return sum(self.sizes.values())


@dataclass(frozen=True, kw_only=True)
class JobPackage:
    """A package for Ray: its name there, and the file here, which no folder names: it goes with this process."""

    name: str
    file: IO[bytes]

    @property
    def uri(self) -> str:
        """How a job names it."""
        return f"gcs://{self.name}"


def find_files(folder: Path, excludes: Sequence[str]) -> WorkFiles:
    """Return what of a directory goes along; `SpecError` where it is none, or too much; `OSError` when unreadable."""
    if not folder.is_dir():
        raise SpecError(
            _("the working directory is missing"), where=str(folder), next_step=_("name one with --working-dir DIR")
        )
    patterns, sizes, left = (*EXCLUDED, *excludes), dict[str, int](), list[str]()
    for path in _walk(folder, patterns):
        name = path.relative_to(folder).as_posix()
        try:
            about = path.stat()
        except OSError:
            left.append(name)
            continue
        if stat.S_ISREG(about.st_mode):
            sizes[name] = about.st_size
        else:
            left.append(name)
    check_size(str(folder), sizes)
    return WorkFiles(folder=folder, sizes=sizes, left=tuple(left))


def _walk(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield what lies in a directory, in order; folders that are links are yielded and not entered."""

    def refuse(error: OSError) -> None:
        raise error

    for where, folders, names in os.walk(folder, onerror=refuse):
        here = Path(where)
        kept = [name for name in sorted(folders) if not _left(folder, here / name, patterns)]
        folders[:] = [name for name in kept if not (here / name).is_symlink()]
        yield from (here / name for name in kept if (here / name).is_symlink())
        yield from (here / name for name in sorted(names) if not _left(folder, here / name, patterns))


def _left(folder: Path, path: Path, patterns: Sequence[str]) -> bool:
    return is_excluded(path.relative_to(folder).as_posix(), patterns)


@contextmanager
def packed(files: WorkFiles) -> Iterator[JobPackage]:
    """Yield the package of the files while the block runs; `OSError` where one of them cannot be read."""
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as whole:
            for name in sorted(files.sizes):
                _add(whole, files.folder / name, name)
        digest = hashlib.sha256()
        file.seek(0)
        while block := file.read(_BLOCK):
            digest.update(block)
        file.seek(0)
        yield JobPackage(name=f"_ray_pkg_{digest.hexdigest()[:32]}.zip", file=file)


def _add(whole: zipfile.ZipFile, path: Path, name: str) -> None:
    with path.open("rb") as source:
        row = zipfile.ZipInfo(name, _EPOCH)
        row.compress_type = zipfile.ZIP_DEFLATED
        row.external_attr = (os.fstat(source.fileno()).st_mode & 0o777 | stat.S_IFREG) << 16
        with whole.open(row, "w") as goal:
            while block := source.read(_BLOCK):
                goal.write(block)
