"""Look at the files that a stage needs or must leave: there, large enough, and as their manifest says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from rlbox.plan.gates import FileFact
from rlbox.plan.run import FilePlan

MANIFEST_SCHEMA = 1
_BLOCK = 1 << 20


def probe_file(rule: FilePlan, on_block: Callable[[], None]) -> FileFact:
    """Return what is at the path of `rule`; a directory counts as there when it holds something.

    `on_block` is called for every MiB that is summed; what it raises ends the look.
    """
    path = Path(rule.path)
    try:
        if path.is_dir():
            return FileFact(problem="" if any(path.iterdir()) else "the folder is empty")
        size = path.stat().st_size
        if size < rule.min_bytes:
            return FileFact(bytes=size, problem=f"has {size} bytes, at least {rule.min_bytes} are due")
        return FileFact(bytes=size, problem=_manifest_problem(path, on_block) if rule.manifest else "")
    except FileNotFoundError:
        return FileFact(problem="is not there")
    except OSError as error:
        return FileFact(problem=f"cannot be read: {error.strerror}")


def _manifest_problem(path: Path, on_block: Callable[[], None]) -> str:
    """Return the first thing that differs from a manifest, or an empty text.

    The form is `{"schema": 1, "files": {"model.safetensors": {"bytes": 123, "sha256": "…"}}}`; names are relative to
    the manifest's folder. Sizes of all files are compared before the first sum, which takes long on large ones.
    """
    try:
        data = json.loads(path.read_bytes())
    except ValueError:
        return "is not a manifest: it is not whole JSON"
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, dict) or not files or data.get("schema") != MANIFEST_SCHEMA:
        return f"is not a manifest of schema {MANIFEST_SCHEMA} with at least one file"
    problems = (
        f"{name} {problem}" for name, entry in files.items() if (problem := _size_problem(path.parent, name, entry))
    )
    return next(problems, "") or next(
        (
            f"{name} differs from its sha256 in the manifest"
            for name, entry in files.items()
            if _sum(path.parent / name, on_block) != entry["sha256"].lower()
        ),
        "",
    )


def _size_problem(folder: Path, name: str, entry: Any) -> str:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        return "lies outside the manifest's folder"
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("bytes"), int)
        or not isinstance(entry.get("sha256"), str)
    ):
        return "has no bytes and sha256 in the manifest"
    path = folder / parts
    if not path.is_file():
        return "is not there"
    size = path.stat().st_size
    if size < entry["bytes"]:
        return f"is truncated: {size} of {entry['bytes']} bytes"
    return "" if size == entry["bytes"] else f"has {size} bytes, the manifest says {entry['bytes']}"


def _sum(path: Path, on_block: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            on_block()
    return digest.hexdigest()
