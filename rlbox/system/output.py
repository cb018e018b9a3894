"""Where a verb writes what somebody asked for, looked at before the work begins: one rule for all of them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rlbox.errors import NodeError
from rlbox.system.folders import special_kind


def check_output(path: Path, other: str) -> None:
    """Refuse a file that cannot be written: its folder is there, a slip makes none.

    Parameters
    ----------
    other
        How another is named: `another with --out`, `another FILE`.

    Raises
    ------
    NodeError
        The folder is missing, or no folder, or not this user's to write in; or no regular file has the name.
    """
    if kind := special_kind(path):
        raise NodeError(f"{kind} has this name, which is not replaced", where=str(path), next_step=f"name {other}")
    _check_parent(path, other)


def check_output_folder(folder: Path, other: str) -> None:
    """Refuse a folder that can neither be made, in one that is there, nor be written in; as `check_output`."""
    if not os.path.lexists(folder):
        _check_parent(folder, other)
    elif not folder.is_dir():
        raise NodeError("no folder has this name", where=str(folder), next_step=f"name {other}")
    else:
        _check_writable(folder, other)


def _check_parent(path: Path, other: str) -> None:
    parent = path.absolute().parent
    if parent.is_dir():
        _check_writable(parent, other)
        return
    if any(os.path.lexists(one) and not one.is_dir() for one in (parent, *parent.parents)):
        raise NodeError("this lies below what is no folder", where=str(path), next_step=f"name {other}")
    raise NodeError(
        "the folder of this is not there",
        where=str(path),
        next_step=f"mkdir -p {shlex.quote(str(parent))}, or name {other}",
    )


def _check_writable(folder: Path, other: str) -> None:
    if os.statvfs(folder).f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK | os.X_OK):
        raise NodeError(
            "nothing can be written there by this user",
            where=str(folder),
            next_step=f"make the folder writable for you, or name {other}",
        )
