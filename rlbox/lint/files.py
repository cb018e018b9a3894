"""The files that lint reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlbox.amounts import decimal_size_text
from rlbox.i18n import _
from rlbox.lint.formats import guess_format_from_file_name

LARGEST = 1024 * 1024  # bytes; a larger file is data
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "build", "dist"}


def read_texts_noting_problems(file_or_dir_names: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file, of a directory its scripts, specs and notes; `problems` gets the unreadable."""
    paths: list[Path] = []
    for name in file_or_dir_names:
        paths += sorted(_scripts_below(Path(name))) if Path(name).is_dir() else [Path(name)]
    for path in dict.fromkeys(paths):
        shown = "<stdin>" if str(path) == "-" else str(path)
        try:
            data = sys.stdin.buffer.read(LARGEST + 1) if str(path) == "-" else _read(path)
            if len(data) > LARGEST:
                text = _("{file}: is larger than {largest}, so it is not a script")
                problems.append(text.format(file=shown, largest=decimal_size_text(LARGEST)))
            elif b"\0" in data:
                problems.append(_("{file}: is a binary file, it holds NUL bytes").format(file=shown))
            else:
                yield shown, data.decode("utf-8", "replace")
        except OSError as error:
            problems.append(_("{file}: cannot be read: {reason}").format(file=shown, reason=error.strerror))


def _scripts_below(directory: Path) -> Iterator[Path]:
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if name not in _SKIPPED and not name.startswith(".")]
        for path in (Path(parent, name) for name in files):
            if path.is_file() and os.access(path, os.R_OK) and b"\0" not in (data := _read(path)):
                is_script = not path.suffix and data[:2] == b"#!"
                is_json = path.suffix == ".json"  # data, unless named
                if is_script or (guess_format_from_file_name(path.name) and not is_json):
                    yield path


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST + 1)
