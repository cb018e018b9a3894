"""Look at the files that a stage needs or must leave: there, large enough, new, and whole."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from rlbox.foreign import parse_json
from rlbox.gate.act.tensors import tensors_problem
from rlbox.job.gate_plan import FilePlan
from rlbox.job.gate_rule import WILD
from rlbox.job.names import FileFact

_LOOK_S = 0.05
_COARSE_NS = 50_000_000
"""Time stamps of files come from a clock that ticks some milliseconds behind the one that programs read."""

MANIFEST_SCHEMA = 1
_BLOCK = 1 << 20
_JSON_LIMIT = 256 << 20

OnBlock = Callable[[], None]


def probe_file(rule: FilePlan, on_block: OnBlock, *, since_ns: int = 0) -> FileFact:
    """Return what is at the path of `rule`, or at the worst of all that fit it when it holds wild cards.

    A directory counts as there when it holds something and nothing of its content is asked.

    Parameters
    ----------
    on_block
        Called for every MiB that is summed, and while a file is waited for; what it raises ends the look.
    since_ns
        Time (ns since 1970) since which a file must have been written; 0: any time.
    """
    if not WILD.search(rule.path) or os.path.lexists(rule.path):
        return _probe_one(rule, Path(rule.path), on_block, since_ns)
    paths = sorted(glob.glob(rule.path, recursive=True))
    if len(paths) < rule.count:
        return FileFact(problem=f"{len(paths) or 'no'} files fit, at least {rule.count} are due")
    facts = {path: _probe_one(rule, Path(path), on_block, since_ns) for path in paths}
    for path, fact in facts.items():
        if fact.problem:
            return FileFact(bytes=fact.bytes, problem=f"{os.path.basename(path)} {fact.problem}")
    return FileFact(bytes=sum(fact.bytes or 0 for fact in facts.values()))


def _probe_one(rule: FilePlan, path: Path, on_block: OnBlock, since_ns: int) -> FileFact:
    try:
        if path.is_dir():
            return FileFact(problem=_folder_problem(rule, path))
        facts = path.stat()
        if facts.st_size < rule.min_bytes:
            return FileFact(
                bytes=facts.st_size, problem=f"has {facts.st_size} bytes, at least {rule.min_bytes} are due"
            )
        if max(facts.st_mtime_ns, facts.st_ctime_ns) < since_ns - _COARSE_NS:
            return FileFact(bytes=facts.st_size, problem="is older than the stage, which has not written it")
        problem = _growth_problem(rule, path, on_block) or content_problem(path, rule.format, on_block)
        if not problem and rule.manifest:
            problem = manifest_problem(path, on_block)
        return FileFact(bytes=facts.st_size, problem=problem)
    except FileNotFoundError:
        return FileFact(problem="is not there")
    except OSError as error:
        return FileFact(problem=f"cannot be read: {error.strerror}")


def _folder_problem(rule: FilePlan, path: Path) -> str:
    if not any(path.iterdir()):
        return "the folder is empty"
    return "is a folder, not a file" if rule.manifest or rule.format or rule.min_bytes > 1 else ""


def _growth_problem(rule: FilePlan, path: Path, on_block: OnBlock) -> str:
    """Return that a file still changes, looking at it for `settled_s` unless it has been still for that long."""
    before = path.stat()
    until = time.monotonic() + rule.settled_s - max(0.0, time.time() - before.st_mtime)
    while time.monotonic() < until:
        on_block()
        time.sleep(_LOOK_S)
        now = path.stat()
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            return f"is still being written ({before.st_size} bytes, then {now.st_size})"
    return ""


def content_problem(path: Path, form: str, on_block: OnBlock) -> str:
    """Return why a file is not whole as `form` (json, jsonl, safetensors), or an empty text."""
    match form:
        case "json":
            return _json_problem(path)
        case "jsonl":
            return _rows_problem(path, on_block)
        case "safetensors":
            return tensors_problem(path)
        case _:
            return ""


def _json_problem(path: Path) -> str:
    if path.stat().st_size > _JSON_LIMIT:
        return f"is too large to be read as JSON ({_JSON_LIMIT >> 20} MiB at most); write it as jsonl"
    try:
        parse_json(path.read_bytes())
    except ValueError as error:
        return f"is not whole JSON: {error}"
    return ""


def _rows_problem(path: Path, on_block: OnBlock) -> str:
    rows = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number % 1000 == 0:
                on_block()
            if not line.strip():
                continue
            try:
                parse_json(line)
            except ValueError:
                torn = "" if line.endswith(b"\n") else ", it ends within it"
                return f"line {number} is no JSON{torn}"
            rows += 1
    return "" if rows or not path.stat().st_size else "holds no row"


def manifest_problem(path: Path, on_block: OnBlock) -> str:
    """Return the first thing that differs from a manifest, or an empty text.

    The form is `{"schema": 1, "files": {"model.safetensors": {"bytes": 123, "sha256": "…"}}}`; names are relative to
    the manifest's folder. Sizes of all files are compared before the first sum, which takes long on large ones.
    """
    try:
        data = parse_json(path.read_bytes())
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


def _sum(path: Path, on_block: OnBlock) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            on_block()
    return digest.hexdigest()
