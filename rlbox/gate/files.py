"""Check the files that a stage needs or must leave: present, large enough, new, complete."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rlbox.amounts import decimal_size_text
from rlbox.foreign import parse_json
from rlbox.gate.safetensors_check import find_safetensors_problem
from rlbox.job.gate import WILDCARD, FileRule
from rlbox.job.names import ProblemOrEmpty
from rlbox.system.safe_files import open_regular_file, read_bytes, walk_files

_DEEP = "**"


def glob_paths(path: str) -> list[Path]:
    """Return what fits a path with wild cards, sorted; `**` enters no link, nor folders nested deeper than 32."""
    parts = Path(path).parts
    if _DEEP not in parts:
        return [Path(found) for found in sorted(glob.glob(path))]
    first = parts.index(_DEEP)
    base, wanted = str(Path(*parts[:first])) if first else ".", parts[first:]
    bases = sorted(glob.glob(base)) if WILDCARD.search(base) else [base]
    found = (Path(one, *below) for one in bases for below in _below(Path(one)) if _fits(below, wanted))
    return sorted(set(found))


def _iter_regular_files(path: Path) -> Iterator[Path]:
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
        yield from (tuple(name.split("/")) for name, _ in walk_files(folder.resolve(), include_directories=True))


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


_BLOCK = 1 << 20
OnProgress = Callable[[], None]


class FileSnapshot:
    """The files that fitted some paths, as file rules name them, at one moment."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._files: dict[tuple[int, int], tuple[int, int]] = {}
        for path in paths:
            for fitting in [Path(path), *(glob_paths(path) if WILDCARD.search(path) else [])]:
                for file in _iter_regular_files(fitting):
                    with contextlib.suppress(OSError):  # somebody removed it meanwhile
                        facts = file.stat()
                        self._files[facts.st_dev, facts.st_ino] = facts.st_size, facts.st_mtime_ns

    def find_unchanged(self, path: Path) -> ProblemOrEmpty:
        """Return why the file at `path` was not written since, or an empty text; raises `OSError`."""
        facts = path.stat()
        if self._files.get((facts.st_dev, facts.st_ino)) == (facts.st_size, facts.st_mtime_ns):
            return "is as it was before the stage, which has not written it"
        return ""


_LOOK_S = 0.05


@dataclass(frozen=True, kw_only=True)
class FileCheck:
    """The state of a path; `problem` is empty when it is there and complete."""

    total_bytes: int | None = None
    problem: ProblemOrEmpty = ""


MANIFEST_SCHEMA = 1
_JSON_LIMIT = 64 << 20
"""Bytes of JSON that are read at once: as values it takes twenty times as many."""


def check_file(rule: FileRule, on_progress: OnProgress, *, earlier_snapshot: FileSnapshot | None = None) -> FileCheck:
    """Return what is at the path of `rule`, or at the worst of all that fit it when it holds wild cards.

    Of a folder every regular file in it counts; nothing of their content is asked.

    Parameters
    ----------
    on_progress
        Called for every MiB that is summed, and while a file is waited for; what it raises ends the look.
    earlier_snapshot
        What was there before it had to be written; None: any time will do.
    """
    one = not WILDCARD.search(rule.path) or os.path.lexists(rule.path)
    paths = [Path(rule.path)] if one else glob_paths(rule.path)
    if not one and len(paths) < rule.count:
        return FileCheck(problem=f"{len(paths) or 'no'} files fit, at least {rule.count} are due")
    problems = _growth_problems(rule, paths, on_progress)
    facts = {path: _probe_one(rule, path, on_progress, earlier_snapshot, problems.get(path, "")) for path in paths}
    for path, fact in facts.items():
        if fact.problem:
            return fact if one else FileCheck(total_bytes=fact.total_bytes, problem=f"{path.name} {fact.problem}")
    return FileCheck(total_bytes=sum(fact.total_bytes or 0 for fact in facts.values()))


def _probe_one(
    rule: FileRule, path: Path, on_progress: OnProgress, before: FileSnapshot | None, growth: str
) -> FileCheck:
    try:
        facts = path.stat()
        if stat.S_ISDIR(facts.st_mode):
            return _probe_folder(rule, path, before)
        if not stat.S_ISREG(facts.st_mode):
            return FileCheck(problem="is no regular file")
        if facts.st_size < rule.min_bytes:
            return FileCheck(
                total_bytes=facts.st_size, problem=f"has {facts.st_size} bytes, at least {rule.min_bytes} are due"
            )
        unchanged = before.find_unchanged(path) if before else ""
        problem = unchanged or growth or _find_content_problem(path, rule.format, on_progress)
        if not problem and rule.manifest:
            problem = _find_manifest_problem(path, on_progress)
        return FileCheck(total_bytes=facts.st_size, problem=problem)
    except FileNotFoundError:
        return FileCheck(problem="is not there")
    except OSError as error:
        return FileCheck(problem=f"cannot be read: {error.strerror}")


def _probe_folder(rule: FileRule, path: Path, before: FileSnapshot | None) -> FileCheck:
    """Return what is in a folder: with `before`, at least one file must have been written since."""
    files = list(_iter_regular_files(path))
    if not files:
        return FileCheck(problem="the folder holds no file")
    if rule.manifest or rule.format or rule.min_bytes > 1:
        return FileCheck(problem="is a folder, not a file")
    if before and all(before.find_unchanged(file) for file in files):
        return FileCheck(problem="holds no file that the stage has written")
    return FileCheck()


def _growth_problems(rule: FileRule, paths: Sequence[Path], on_progress: OnProgress) -> Mapping[Path, str]:
    """Return those of the files that change within `settled_s`, each with how."""
    until = time.monotonic() + rule.settled_s
    first, problems = _looks(paths) if rule.settled_s else {}, dict[Path, str]()
    while time.monotonic() < until and not problems:
        on_progress()
        time.sleep(_LOOK_S)
        now = _looks(paths)
        for path, before in first.items():
            if path in now and now[path] != before:
                problems[path] = f"is still being written ({before[0]} bytes, then {now[path][0]})"
    return problems


def _looks(paths: Sequence[Path]) -> Mapping[Path, tuple[int, int]]:
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            facts = path.stat()
            found[path] = facts.st_size, facts.st_mtime_ns
    return found


def _find_content_problem(path: Path, format_name: str, on_progress: OnProgress) -> ProblemOrEmpty:
    """Return why a file is not whole as `format_name` (json, jsonl, safetensors), or an empty text."""
    match format_name:
        case "json":
            return _json_problem(path)
        case "jsonl":
            return _rows_problem(path, on_progress)
        case "safetensors":
            return find_safetensors_problem(path)
        case _:
            return ""


def _json_problem(path: Path) -> ProblemOrEmpty:
    try:
        parse_json(read_bytes(path, _JSON_LIMIT, follow_links=True))
    except ValueError as error:
        return f"is not whole JSON: {error}"
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return f"is too large to be read as JSON ({decimal_size_text(_JSON_LIMIT)} at most); write it as jsonl"
    return ""


def _rows_problem(path: Path, on_progress: OnProgress) -> ProblemOrEmpty:
    rows = 0
    with open_regular_file(path, follow_links=True) as file:
        for number, line in enumerate(iter(lambda: file.readline(_JSON_LIMIT), b""), start=1):
            if number % 1000 == 0 or len(line) > _BLOCK:
                on_progress()
            if len(line) == _JSON_LIMIT:
                return f"line {number} is longer than {decimal_size_text(_JSON_LIMIT)}"
            if not line.strip():
                continue
            try:
                parse_json(line)
            except ValueError:
                torn = "" if line.endswith(b"\n") else ", it ends within it"
                return f"line {number} is no JSON{torn}"
            rows += 1
    return "" if rows or not path.stat().st_size else "holds no row"


def _find_manifest_problem(path: Path, on_progress: OnProgress) -> ProblemOrEmpty:
    """Return the first thing that differs from a manifest, or an empty text.

    The form is `{"schema": 1, "files": {"model.safetensors": {"bytes": 123, "sha256": "…"}}}`; names are relative to
    the manifest's folder. Sizes of all files are compared before the first sum, which takes long on large ones.
    """
    try:
        data = parse_json(read_bytes(path, _JSON_LIMIT, follow_links=True))
    except ValueError:
        return "is not a manifest: it is not whole JSON"
    files, schema = (data.get("files"), data.get("schema")) if isinstance(data, dict) else (None, None)
    if not isinstance(files, dict) or not files or type(schema) is not int or schema != MANIFEST_SCHEMA:
        return f"is not a manifest of schema {MANIFEST_SCHEMA} with at least one file"
    problems = (
        f"{name} {problem}" for name, entry in files.items() if (problem := _size_problem(path.parent, name, entry))
    )
    return next(problems, "") or next(
        (
            f"{name} differs from its sha256 in the manifest"
            for name, entry in files.items()
            if _sum(path.parent / name, on_progress) != entry["sha256"].lower()
        ),
        "",
    )


def _size_problem(folder: Path, name: str, entry: Any) -> ProblemOrEmpty:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        return "lies outside the manifest's folder"
    if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or not isinstance(entry.get("sha256"), str):
        return "has no bytes and sha256 in the manifest"
    path = folder / parts
    if not path.is_file():
        return "is not there"
    size = path.stat().st_size
    if size < entry["bytes"]:
        return f"is truncated: {size} of {entry['bytes']} bytes"
    return "" if size == entry["bytes"] else f"has {size} bytes, the manifest says {entry['bytes']}"


def _sum(path: Path, on_progress: OnProgress) -> str:
    digest = hashlib.sha256()
    with open_regular_file(path, follow_links=True) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            on_progress()
    return digest.hexdigest()
