"""Write the files of an evidence folder, each whole or not at all, and the manifest that names them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlbox.files.act.copies import sum_file
from rlbox.files.act.folders import write_atomic
from rlbox.files.act.room import disk_full

MANIFEST_FILE = "manifest.json"


def write_texts(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Write `texts` (name below `folder` to text), empty ones left out; return why some were not written, by name.

    On a full disk what comes first is there and the rest is not, never a part of a file.

    Raises
    ------
    OSError
        Not even the first could be written.
    """
    problems: dict[str, str] = {}
    full = ""
    for number, (name, text) in enumerate(texts.items()):
        if full or not text:
            problems |= {name: full} if text else {}
            continue
        try:
            write_atomic(folder / name, text.encode("utf-8", "replace"))
        except OSError as error:
            if number == 0:
                raise
            problems[name] = error.strerror or str(error)
            full = problems[name] if disk_full(error) else ""
    return problems


def write_manifest(folder: Path, what: Mapping[str, str], missing: Mapping[str, str]) -> None:
    """Write `manifest.json`: `files` (name, bytes, sha256, what it is) and `missing` (name to why it is not there).

    Every file of the folder is named, also those that others put there.
    """
    rows = [
        {
            "name": name,
            "bytes": (folder / name).stat().st_size,
            "sha256": sum_file(folder / name),
            "what": says(what, name),
        }
        for name in sorted(_names(folder))
    ]
    data = {"schema": 1, "files": rows, "missing": dict(sorted(missing.items()))}
    write_atomic(folder / MANIFEST_FILE, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def says(what: Mapping[str, str], name: str) -> str:
    """Return what a file is, by its name or by that of the folder it is in."""
    return what.get(name) or what.get(name.partition("/")[0], "")


def _names(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink() and not name.startswith(".") and name != MANIFEST_FILE:
                yield path.relative_to(folder).as_posix()
