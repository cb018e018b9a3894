"""Find checkpoints below a folder and look at their files: ends, headers and lists are read, no weights."""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from rlbox.foreign import parse_json
from rlbox.training.ckpt import TRACKERS, Entry, Found, Kind, kind_of

_DISTCP = re.compile(rb"__\d+_\d+\.distcp")
_HEADER_BYTES = 100 << 20  # safetensors' own limit
_LIST_BYTES = 64 << 20


def find_checkpoints(root: Path) -> dict[Path, list[Found]]:
    """Return the checkpoints at, or below, `root` by the folder that they lie in; they are not searched themselves.

    A model's folder is one only where `root` is it.
    """
    found: dict[Path, list[Found]] = {}
    if known := kind_of(root.name) or (("hf", None) if _is_model(root) else None):
        found[root.parent] = [_look(root, *known)]
        return found
    for folder, names, _ in os.walk(root):
        here = [(name, known) for name in sorted(names) if (known := _kind(Path(folder, name)))]
        names[:] = sorted(name for name in names if name not in {name for name, _ in here} and name[:1] != ".")
        if here:
            found[Path(folder)] = [_look(Path(folder, name), *known) for name, known in here]
    return found


def read_tracker(folder: Path) -> str | None:
    """Return what the tracker in a folder names; None where there is none."""
    for name in TRACKERS:
        try:
            return (folder / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
    return None


def _kind(folder: Path) -> tuple[Kind, int | None] | None:
    known = kind_of(folder.name)
    if known and known[1] is None and not (folder.parent / TRACKERS[0]).is_file():
        return None  # `release` is a common name
    return known


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or any(folder.glob("*.safetensors"))


def _look(folder: Path, kind: Kind, step: int | None) -> Found:
    return Found(path=str(folder), kind=kind, step=step, entries=tuple(sorted(_entries(folder), key=lambda e: e.path)))


def _entries(folder: Path) -> Iterator[Entry]:
    now = time.time()
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            try:
                facts = path.stat()
                damage, listed = _inspect(path, facts.st_size)
            except OSError as error:
                yield Entry(path=str(path.relative_to(folder)), size=0, damage=str(error.strerror))
                continue
            yield Entry(
                path=str(path.relative_to(folder)),
                size=facts.st_size,
                age_s=max(now - facts.st_mtime, 0.0),
                damage=damage,
                names=listed,
            )


def _inspect(path: Path, size: int) -> tuple[str, tuple[str, ...]]:
    """Return why a file is not whole (empty: nothing is wrong), and the files that it lists."""
    if size == 0:
        return "it is empty", ()
    if path.name.endswith(".safetensors"):
        return _safetensors(path, size), ()
    if path.name.endswith((".pt", ".pth", ".bin")):
        return _archive(path), ()
    if path.name.endswith(".index.json") and size <= _LIST_BYTES:
        return _index(path)
    if path.name == ".metadata" and size <= _LIST_BYTES:
        return "", tuple(sorted({name.decode() for name in _DISTCP.findall(path.read_bytes())}))
    return "", ()


def _safetensors(path: Path, size: int) -> str:
    """Return what is wrong with a file whose header says how long it must be."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_BYTES):
            return "its header is cut short"
        try:
            rows = parse_json(file.read(length))
            ends = [row["data_offsets"][1] for name, row in rows.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "its header is damaged"
    missing = 8 + length + max(ends, default=0) - size
    return f"{missing} bytes are missing at its end" if missing > 0 else ""


def _archive(path: Path) -> str:
    """Return what is wrong with a file of torch.save: a ZIP archive, whose directory is at its end."""
    with open(path, "rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"
    if not is_archive:
        return ""  # the form before PyTorch 1.6, of which nothing is told but by reading all
    return "" if zipfile.is_zipfile(path) else "its end is missing"


def _index(path: Path) -> tuple[str, tuple[str, ...]]:
    try:
        rows = parse_json(path.read_bytes())["weight_map"]
        return "", tuple(sorted(set(rows.values())))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "it is no index of weights", ()
