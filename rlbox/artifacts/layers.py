"""Lay the layers of an image over each other in a folder, without an engine, and write nothing outside of it.

Owners, devices, set-user-id bits and leave for others to write are left out: the tree is that of whoever lays it. A
link from the root of the image is laid as one from its own folder, so that it leads there without a chroot. A layer
may be laid again over half of itself.
"""

from __future__ import annotations

import gzip
import os
import posixpath
import shutil
import stat
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from rlbox.artifacts.image_files import GONE, open_layer
from rlbox.errors import WorkFailed
from rlbox.system.compression import zstd
from rlbox.system.files import link_or_copy
from rlbox.system.safe_files import remove_tree

_OPAQUE = f"{GONE}{GONE}.opq"
_LINKS = 40
"""Links on the way to a file, as many as the kernel follows."""
_BLOCK = 1 << 20


def lay_layer(layer: Path, root: Path, title: str) -> None:
    """Lay one layer over what earlier ones left in `root`, which is there.

    Raises
    ------
    WorkFailed
        It is no archive, or holds what no image can: a name that leads out of the image, a file below a file.
    OSError
        The disk is full, or cannot be written.
    """
    tree = _Tree(root)
    try:
        with open_layer(layer) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            for member in tar:  # not by `next`, which Python 3.10 asks of an empty layer in vain
                tree.lay(tar, member)
                cast(Any, tar).members.clear()  # else each of some hundred thousand is kept
    except (tarfile.TarError, zstd.ZstdError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise WorkFailed(f"{title} is no archive: {error}", where=str(layer)) from error
    except ValueError as error:
        raise WorkFailed(f"{title} holds what no image can: {error}", where=str(layer)) from error


class _Tree:
    """A folder that a layer is laid into, and what of it came from this layer."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._laid: set[str] = set()
        self._last: tuple[tuple[str, ...], Path] = ((), self._root)

    def lay(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            return  # the root itself
        folder, name = self._folder(parts[:-1]), parts[-1]
        if name == _OPAQUE:
            self._clear(folder)
        elif name.startswith(GONE):
            self._take_away(folder, name.removeprefix(GONE))
        else:
            self._note(folder / name)
            self._put(tar, member, folder / name)
        if name.startswith(GONE) or member.issym() or member.islnk():
            self._last = ((), self._root)

    def _note(self, path: Path) -> None:
        """Note that something of this layer lies at a path, so that no mark of the layer takes it away."""
        while path != self._root and str(path) not in self._laid:
            self._laid.add(str(path))
            path = path.parent

    def _put(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        if member.isdir():
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
                path.mkdir()
            path.chmod(0o700 | member.mode & 0o755)
        elif member.islnk():
            self._link(path, _parts(member.linkname))
        else:
            _remove(path)
            if member.issym() and member.linkname:
                self._lead(path, member.linkname)
            elif source := tar.extractfile(member) if member.isfile() else None:
                with open(path, "xb") as file:
                    shutil.copyfileobj(source, file, _BLOCK)
                path.chmod(0o400 | member.mode & 0o755)
                os.utime(path, (member.mtime, member.mtime))  # compiled Python is known by the time of its source

    def _link(self, path: Path, parts: tuple[str, ...]) -> None:
        source = self._folder(parts[:-1]) / parts[-1] if parts else self._root
        if source == path or (not os.path.lexists(source) and os.path.lexists(path)):
            return  # the second: laid before a kill, and its other name was taken away later in this layer
        if not source.is_symlink() and not source.is_file():
            raise ValueError(f"{'/'.join(parts)} has a second name, and is no file")
        _remove(path)
        if source.is_symlink():
            self._lead(path, os.readlink(source))
        else:
            mode = source.stat().st_mode
            link_or_copy(source, path)
            path.chmod(stat.S_IMODE(mode))

    def _lead(self, path: Path, to: str) -> None:
        path.symlink_to(kept_within(to, path.relative_to(self._root).parts[:-1]))

    def _take_away(self, folder: Path, name: str) -> None:
        """Remove what a lower layer has at a name; what this one laid there stays."""
        if name in ("", ".", ".."):
            raise ValueError(f"{GONE}{name} is no name")
        if not name.startswith(GONE) and str(folder / name) not in self._laid:
            _remove(folder / name)

    def _clear(self, folder: Path) -> None:
        for path in folder.iterdir():
            if str(path) not in self._laid:
                _remove(path)
            elif path.is_dir() and not path.is_symlink():
                self._clear(path)

    def _folder(self, parts: tuple[str, ...]) -> Path:
        """Return the folder that a path of the image leads to, made where it is missing; links stay in the image."""
        if parts != self._last[0]:
            self._last = (parts, self._walk(parts))
        return self._last[1]

    def _walk(self, parts: tuple[str, ...]) -> Path:
        todo, at, links = list(reversed(parts)), self._root, 0
        while todo:
            part = todo.pop()
            if part in ("..", "/"):  # of a link
                at = self._root if part == "/" or at == self._root else at.parent
                continue
            path = at / part
            if path.is_symlink():
                links += 1
                todo += reversed(PurePosixPath(os.readlink(path)).parts)
            elif not os.path.lexists(path):
                path.mkdir()
                at = path
            elif path.is_dir():
                at = path
            else:
                raise ValueError(f"{path.relative_to(self._root)} is a file, and something lies below it")
            if links > _LINKS:
                raise ValueError(f"{'/'.join(parts)} leads through a ring of links")
        return at


def kept_within(to: str, folder: Sequence[str]) -> str:
    """Return where a link of the image that lies in `folder` leads, so that it leads there without a chroot.

    One from the image's root becomes one from its own folder; more `..` than there are folders end at the root.
    """
    whole = to.startswith("/")
    depth = lowest = 0 if whole else len(folder)
    for part in PurePosixPath(to).parts:
        depth += {"..": -1, "/": 0, "//": 0}.get(part, 1)
        lowest = min(lowest, depth)
    if not whole and lowest >= 0:
        return to
    at = "/" + "/".join(folder)
    return posixpath.relpath(posixpath.normpath("/" + to.lstrip("/") if whole else f"{at}/{to}"), at)


def _parts(name: str) -> tuple[str, ...]:
    """Return the parts of a path in a layer; `ValueError` when it leads out of the image."""
    parts = tuple(part for part in PurePosixPath(name).parts if part.strip("/"))
    if ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} leads out of it")
    return parts


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
