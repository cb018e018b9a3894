"""The files that a lint is asked for: named ones, those below folders, standard input; what cannot be read is said."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from rlbox.amounts import size_text
from rlbox.lint.documents import kind_by_name

LARGEST = 1024 * 1024  # bytes; a larger file is data
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "build", "dist"}


class Unreadable(Exception):
    """A file that cannot be linted; the text says why, in one line."""


def read_files(names: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of every file asked for, once each; what cannot be read goes into `problems`.

    Below a folder only what looks like a script, a spec or notes is read; a file that is named is read whatever it is.
    """
    seen: set[str] = set()
    for name in names:
        path = Path(name)
        below = name != "-" and path.is_dir()
        for file in sorted(_below(path)) if below else [path]:
            shown = "<stdin>" if name == "-" else str(file)
            if shown in seen:
                continue
            seen.add(shown)
            try:
                yield shown, _text(None if name == "-" else file)
            except Unreadable as error:
                if not (below and error.args[1:]):
                    problems.append(f"{shown}: {error.args[0]}")


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            path = Path(place, name)
            known = kind_by_name(name) not in ("", "json")  # JSON is data, unless it is named
            if known or (not path.suffix and _is_script(path)):
                yield path


def _is_script(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _text(path: Path | None) -> str:
    """Return the text of a file, or of standard input.

    Raises
    ------
    Unreadable
        With a second argument when it is only no text, so that a folder may hold it.
    """
    if path is None:
        return _decoded(_read(sys.stdin.buffer))
    try:
        mode = path.stat().st_mode
        piped = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/fd/", "/proc/self/fd/"))
        if not stat.S_ISREG(mode) and not piped:
            raise Unreadable("is no file that can be read as text")
        with path.open("rb") as file:
            return _decoded(_read(file))
    except FileNotFoundError:
        raise Unreadable("there is no such file") from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error


def _read(file: BinaryIO) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise Unreadable(f"is larger than {size_text(LARGEST)}, so it is no script", "data")
    return data


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        raise Unreadable("is a binary file, it holds NUL bytes", "data")
    return data.decode("utf-8", "replace")
