"""Check the files that a stage needs or must leave: present, large enough, new, complete."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from rlbox.amounts import decimal_size_text
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _, join
from rlbox.job.gate import WILDCARD, FileRule
from rlbox.job.names import ProblemOrEmpty
from rlbox.system.safe_files import open_regular_file, read_bytes, walk_non_directories


def expand_shell_glob(path: str) -> list[Path]:
    """Return what fits a path with wild cards, sorted, as a shell has it; `**` enters no link."""
    parts = Path(path).parts
    if "**" not in parts:
        return [Path(fitting) for fitting in sorted(glob.glob(path))]
    first = parts.index("**")
    base, pattern = str(Path(*parts[:first])), "/".join(parts[first:])
    pattern += "/*" if pattern.endswith("**") else ""  # a bare `**` fits folders alone
    fits_hidden = "/." in f"/{pattern}"
    return sorted(
        {
            fitting
            for folder in glob.glob(base)
            for fitting in Path(folder).glob(pattern)
            if fits_hidden or not any(part.startswith(".") for part in fitting.relative_to(folder).parts)
        }
    )


def _iter_regular_files(path: Path) -> Iterator[Path]:
    """Yield the regular file at `path`, or all of them below the folder there; links to folders are not followed."""
    if path.is_dir():
        below = (path / name for name, _ in walk_non_directories(path.resolve()))
        yield from (file for file in below if _is_regular(file))
    elif _is_regular(path):
        yield path


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


_BLOCK = 1 << 20
_LOOK_S = 0.05
_JSON_LIMIT = 64 << 20
"""Bytes of JSON that are read at once: as values it takes twenty times as many."""
MANIFEST_SCHEMA = 1

OnProgress = Callable[[], None]


class FilesSnapshot:
    def __init__(self, paths_or_globs: Iterable[str]) -> None:
        self._files: dict[tuple[int, int], tuple[int, int]] = {}
        for path in paths_or_globs:
            for fitting in [Path(path), *(expand_shell_glob(path) if WILDCARD.search(path) else [])]:
                for file in _iter_regular_files(fitting):
                    with contextlib.suppress(OSError):  # somebody removed it meanwhile
                        facts = file.stat()
                        self._files[facts.st_dev, facts.st_ino] = facts.st_size, facts.st_mtime_ns

    def is_unchanged(self, path: Path) -> bool:
        """Return whether the file at `path` was not written since; raises `OSError`."""
        facts = path.stat()
        return self._files.get((facts.st_dev, facts.st_ino)) == (facts.st_size, facts.st_mtime_ns)


@dataclass(frozen=True, kw_only=True)
class FileSizeOrProblem:
    """The state of a path; `problem` is empty when it is there and complete."""

    total_bytes: int = 0
    problem: ProblemOrEmpty = ""


def check_file_rule(
    rule: FileRule, on_progress: OnProgress, *, earlier: FilesSnapshot | None = None
) -> FileSizeOrProblem:
    """Return what is at the path of `rule`, or at the worst of all that fit it when it holds wild cards.

    `on_progress` is called for every MiB that is summed, and while a file is waited for; what it raises ends the look.
    `earlier` is what was there before it had to be written; None: any time will do.
    """
    is_single = not WILDCARD.search(rule.path) or os.path.lexists(rule.path)
    paths = [Path(rule.path)] if is_single else expand_shell_glob(rule.path)
    if not is_single and len(paths) < rule.count:
        return FileSizeOrProblem(
            problem=_("{found} files fit, at least {count} are due").format(
                found=len(paths) or _("no"), count=rule.count
            )
        )
    growing = _find_growing_files(rule, paths, on_progress)
    total_bytes = 0
    for path in paths:
        try:
            problem = _find_problem(rule, path, on_progress, earlier, path in growing)
            total_bytes += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            problem = _("is not there")
        except OSError as error:
            problem = _("cannot be read: {error}").format(error=error.strerror)
        if problem:
            return FileSizeOrProblem(problem=problem if is_single else join(" ", (path.name, problem)))
    return FileSizeOrProblem(total_bytes=total_bytes)


def _find_problem(
    rule: FileRule, path: Path, on_progress: OnProgress, before: FilesSnapshot | None, is_growing: bool
) -> ProblemOrEmpty:
    facts = path.stat()
    if stat.S_ISDIR(facts.st_mode):
        return _find_folder_problem(rule, path, before)
    if not stat.S_ISREG(facts.st_mode):
        return _("is not a regular file")
    if facts.st_size < rule.min_bytes:
        return _("has {size} bytes, at least {least} are due").format(size=facts.st_size, least=rule.min_bytes)
    if before and before.is_unchanged(path):
        return _("is as it was before the stage, which has not written it")
    if is_growing:
        return _("is still being written")
    problem = _find_content_problem(path, rule.format, on_progress)
    return problem or (_find_manifest_problem(path, on_progress) if rule.manifest else "")


def _find_folder_problem(rule: FileRule, path: Path, before: FilesSnapshot | None) -> ProblemOrEmpty:
    files = list(_iter_regular_files(path))
    if not files:
        return _("the folder holds no file")
    if rule.manifest or rule.format or rule.min_bytes > 1:
        return _("is a folder, not a file")
    if before and all(map(before.is_unchanged, files)):
        return _("holds no file that the stage has written")
    return ""


def _find_growing_files(rule: FileRule, paths: Sequence[Path], on_progress: OnProgress) -> set[Path]:
    until = time.monotonic() + rule.settled_s
    first = FilesSnapshot(map(str, paths)) if rule.settled_s else None
    growing = set[Path]()
    while first and time.monotonic() < until and not growing:
        on_progress()
        time.sleep(_LOOK_S)
        with contextlib.suppress(OSError):
            growing = {path for path in paths if path.is_file() and not first.is_unchanged(path)}
    return growing


def _find_content_problem(path: Path, format_name: str, on_progress: OnProgress) -> ProblemOrEmpty:
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
        parse_untrusted_json(read_bytes(path, _JSON_LIMIT, follow_links=True))
    except ValueError as error:
        return _("is not whole JSON: {error}").format(error=error)
    return ""


def _rows_problem(path: Path, on_progress: OnProgress) -> ProblemOrEmpty:
    rows = 0
    with open_regular_file(path, follow_links=True) as file:
        for number, line in enumerate(iter(lambda: file.readline(_JSON_LIMIT), b""), start=1):
            if number % 1000 == 0 or len(line) > _BLOCK:
                on_progress()
            if len(line) == _JSON_LIMIT:
                return _("line {number} is longer than {size}").format(
                    number=number, size=decimal_size_text(_JSON_LIMIT)
                )
            if not line.strip():
                continue
            try:
                parse_untrusted_json(line)
            except ValueError:
                torn = "" if line.endswith(b"\n") else _(", it ends within it")
                return _("line {number} is no JSON{torn}").format(number=number, torn=torn)
            rows += 1
    return "" if rows or not path.stat().st_size else _("holds no row")


def _find_manifest_problem(path: Path, on_progress: OnProgress) -> ProblemOrEmpty:
    """Return the first thing that differs from a manifest.

    The form is `{"schema": 1, "files": {"model.safetensors": {"bytes": 123, "sha256": "…"}}}`; names are relative to
    the manifest's folder. Sizes of all files are compared before the first sum, which takes long on large ones.
    """
    try:
        data = parse_untrusted_json(read_bytes(path, _JSON_LIMIT, follow_links=True))
    except ValueError:
        return _("is not a manifest: it is not whole JSON")
    files, schema = (data.get("files"), data.get("schema")) if isinstance(data, dict) else (None, None)
    if not isinstance(files, dict) or not files or type(schema) is not int or schema != MANIFEST_SCHEMA:
        return _("is not a manifest of schema {schema} with at least one file").format(schema=MANIFEST_SCHEMA)
    for name, entry in files.items():
        if problem := _size_problem(path.parent, name, entry):
            return join(" ", (name, problem))
    for name, entry in files.items():
        if _sum(path.parent / name, on_progress) != entry["sha256"].lower():
            return _("{name} differs from its sha256 in the manifest").format(name=name)
    return ""


def _size_problem(folder: Path, name: str, entry: Any) -> ProblemOrEmpty:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        return _("lies outside the manifest's folder")
    if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or not isinstance(entry.get("sha256"), str):
        return _("has no bytes and sha256 in the manifest")
    path = folder / parts
    if not path.is_file():
        return _("is not there")
    size = path.stat().st_size
    if size < entry["bytes"]:
        return _("is truncated: {size} of {whole} bytes").format(size=size, whole=entry["bytes"])
    different = _("has {size} bytes, the manifest says {whole}").format(size=size, whole=entry["bytes"])
    return "" if size == entry["bytes"] else different


def _sum(path: Path, on_progress: OnProgress) -> str:
    digest = hashlib.sha256()
    with open_regular_file(path, follow_links=True) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            on_progress()
    return digest.hexdigest()


_HEADER_LIMIT = 100_000_000
"""Bytes of a safetensors header. Source: huggingface/safetensors, `MAX_HEADER_SIZE`."""
_SPOTS = 64
_FILLED_SHARE = 1 / 8
"""Share of the places that must hold something."""
_SPOT_BYTES = 4096
_ENOUGH = 1 << 16
"""Bytes of tensors from which on zeros alone are no weights."""


def find_safetensors_problem(path: Path) -> ProblemOrEmpty:
    """Return what is wrong with a safetensors file in a few words; empty when it is whole.

    Tensors follow each other without a gap; weights are never all zeros.
    """
    with open_regular_file(path, follow_links=True) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            return _("is a truncated safetensors file: {size} bytes do not hold its header").format(size=size)
        text = file.read(length)
        try:
            end = _find_end_of_tensors(parse_untrusted_json(text)) if text[:1] == b"{" else None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            end = None
        if end is None:
            return _("is not a safetensors file: its header cannot be read")
        if size != (due := 8 + length + end):
            wrong = _("is truncated: {size} of {due} bytes") if size < due else _("is too long: {size} of {due} bytes")
            return wrong.format(size=size, due=due)
        if not end:
            return _("holds no tensor that has a byte")
        return _find_fill_problem(file, 8 + length, size)


def _find_end_of_tensors(header: dict[str, Any]) -> int:
    """Return where the last tensor ends behind the header; raises many kinds of errors for a header that is wrong."""
    if not all(isinstance(text, str) for text in header.pop("__metadata__", {}).values()):
        raise ValueError
    spans = []
    for entry in header.values():
        begin, end = entry["data_offsets"]
        if not (type(begin) is int and type(end) is int and 0 <= begin <= end):
            raise ValueError
        spans.append((begin, end))
    last = 0
    for begin, end in sorted(spans):
        if begin != last:
            raise ValueError
        last = end
    return last


def _find_fill_problem(file: BinaryIO, begin: int, end: int) -> ProblemOrEmpty:
    if end - begin < _ENOUGH:
        return ""
    places = range(begin, end, max(1, (end - begin) // _SPOTS))
    spots = [os.pread(file.fileno(), min(_SPOT_BYTES, end - at), at) for at in places]
    filled = sum(bool(spot.strip(b"\0")) for spot in spots)
    return _("holds hardly anything but zeros") if filled < _FILLED_SHARE * len(spots) else ""
