"""Find checkpoints below a folder and look at their files: ends, headers and lists are read, no weights."""

from __future__ import annotations

import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from rlbox.evaluation.ckpt import TRACKERS, Entry, Found, Kind, kind_of
from rlbox.foreign import parse_json
from rlbox.gate.tensors import tensors_problem
from rlbox.i18n import _
from rlbox.system.safe_files import MAX_DEPTH, open_regular_file, read_bytes, walk_files

_DISTCP = re.compile(rb"__\d+_\d+\.distcp")
MANIFEST = "checkpoint.json"
"""Lists every file of a checkpoint that a gate holds against it."""
_TRACKER_BYTES = 1 << 12
_LIST_BYTES = 64 << 20


def find_checkpoints(root: Path) -> dict[Path, list[Found]]:
    """Return the checkpoints at, or below, `root` by the folder that they lie in; they are not searched themselves.

    A model's folder is one only where `root` is it, or where it has a manifest, as those that gates ask for.
    """
    found: dict[Path, list[Found]] = {}
    if known := kind_of(root.name) or (("hf", None) if _is_model(root) else None):
        found[root.parent] = [_look(root, *known)]
        return found
    folders = [root]
    while folders:
        folder = folders.pop()
        names = [name for name in _folders(folder) if name[:1] != "."]
        here = {name: known for name in names if (known := _kind(folder / name))}
        if here:
            found[folder] = [_look(folder / name, *known) for name, known in here.items()]
        if len(folder.parts) - len(root.parts) < MAX_DEPTH:
            folders += [folder / name for name in names if name not in here]
    return found


def _folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, links not among them; none of what cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def read_tracker(folder: Path) -> str | None:
    """Return what the tracker in a folder names; None where there is none."""
    for name in TRACKERS:
        try:
            return read_bytes(folder / name, _TRACKER_BYTES, links=True).decode("utf-8", "replace").strip()
        except OSError:
            continue
    return None


def _kind(folder: Path) -> tuple[Kind, int | None] | None:
    known = kind_of(folder.name)
    if known is None and (folder / MANIFEST).is_file() and _is_model(folder):
        return "hf", None
    if known and known[1] is None and not (folder.parent / TRACKERS[0]).is_file():
        return None  # `release` is a common name
    return known


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or any(folder.glob("*.safetensors"))


def _look(folder: Path, kind: Kind, step: int | None) -> Found:
    return Found(path=str(folder), kind=kind, step=step, entries=entries_of(folder))


def entries_of(folder: Path) -> tuple[Entry, ...]:
    """Return the files below a folder, by their paths there, each looked at."""
    return tuple(sorted(_entries(folder), key=lambda entry: entry.path))


def _entries(folder: Path) -> Iterator[Entry]:
    now = time.time()
    for name, __ in walk_files(folder.resolve()):
        path = folder / name
        try:
            facts = path.stat()
            damage, listed = _inspect(path, facts)
        except OSError as error:
            yield Entry(path=name, size=0, damage=str(error.strerror))
            continue
        age_s = max(now - facts.st_mtime, 0.0)
        yield Entry(path=name, size=facts.st_size, age_s=age_s, damage=damage, names=listed)


def _inspect(path: Path, facts: os.stat_result) -> tuple[str, tuple[str, ...]]:
    """Return why a file is not whole (empty: nothing is wrong), and the files that it lists."""
    size = facts.st_size
    if not stat.S_ISREG(facts.st_mode):
        return "it is no regular file", ()
    if size == 0:
        return "it is empty", ()
    if path.name.endswith(".safetensors"):
        problem = tensors_problem(path)
        return f"it {problem}" if problem else "", ()
    if path.name.endswith((".pt", ".pth", ".bin")):
        return _archive(path), ()
    if path.name.endswith(".index.json") and size <= _LIST_BYTES:
        return _listed(path, "weight_map", "it is no index of weights")
    if path.name == MANIFEST and size <= _LIST_BYTES:
        return _listed(path, "files", "it is no manifest")
    if path.name == ".metadata" and size <= _LIST_BYTES:
        return "", tuple(sorted({name.decode() for name in _DISTCP.findall(_read(path))}))
    return "", ()


def _archive(path: Path) -> str:
    """Return what is wrong with a file of torch.save: a ZIP archive, whose directory is at its end."""
    with open_regular_file(path, links=True) as file:
        if file.read(4) != b"PK\x03\x04":
            return ""  # the form before PyTorch 1.6, of which nothing is told but by reading all
        return "" if zipfile.is_zipfile(file) else "its end is missing"


def _listed(path: Path, key: str, problem: str) -> tuple[str, tuple[str, ...]]:
    """Return the files that a list names: those that its rows lead to, or whose facts they are."""
    try:
        rows = parse_json(_read(path))[key]
        names = {name if isinstance(facts, dict) else facts for name, facts in rows.items()}
        if not all(isinstance(name, str) for name in names):
            raise ValueError(_("a name that is no text"))
        return "", tuple(sorted(names))
    except (ValueError, KeyError, TypeError, AttributeError):
        return problem, ()


def _read(path: Path) -> bytes:
    return read_bytes(path, _LIST_BYTES, links=True)
