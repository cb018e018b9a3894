"""The digest of what decides an image, and whether an image that is there is still what the specs say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.files.act.folders import cache_folder, write_atomic
from rlbox.files.act.rows import read_table
from rlbox.image.act.context import context_entries
from rlbox.image.act.plan_cache import file_key
from rlbox.image.parts import BUILD_LABEL, PARTS_LABEL, part_of, parts_text, why_outdated
from rlbox.image.plan import ImagePlan


def build_labels(entries: Mapping[str, str | Path], plan: ImagePlan) -> dict[str, str]:
    """Return the labels by which an unchanged image is recognised: the digest of all, and short ones of its parts."""
    digests = FileDigests.load()
    total = hashlib.sha256(f"epoch={plan.epoch}\n".encode())
    parts: dict[str, Any] = {}
    for name in sorted(entries):
        source = entries[name]
        digest = digests.of(source) if isinstance(source, Path) else hashlib.sha256(source.encode()).hexdigest()
        mark = " executable" if isinstance(source, Path) and source.stat().st_mode & 0o100 else ""
        line = f"{name}\0{digest}{mark}\n".encode()
        total.update(line)
        parts.setdefault(part_of(name), hashlib.sha256()).update(line)
    digests.save()
    return {
        BUILD_LABEL: total.hexdigest(),
        PARTS_LABEL: parts_text(plan, {name: p.hexdigest() for name, p in parts.items()}),
    }


def outdated(plan: ImagePlan, image: Mapping[str, Any]) -> str:
    """Return why the engine's image is not what the plan and this machine hold now; empty while it is."""
    config = image.get("Config")
    labels = config.get("Labels") or {} if isinstance(config, dict) else {}
    return why_outdated(labels, build_labels(context_entries(plan), plan))


class FileDigests:
    """sha256 of files, remembered by size, time stamp and inode, so that an unchanged file is not read again."""

    def __init__(self, known: dict[str, list[str]]) -> None:
        self._known = known
        self._changed = False

    @classmethod
    def load(cls) -> FileDigests:
        """Return the memory of this machine; a torn or missing one is empty."""
        return cls(read_table(_memory()))

    def of(self, path: Path) -> str:
        """Return the digest of a file."""
        key = file_key(str(path))
        match self._known.get(str(path)):
            case [str(known_key), str(known_digest)] if known_key == key:
                return known_digest
        with open(path, "rb") as file:
            total = hashlib.sha256()
            while block := file.read(1 << 20):
                total.update(block)
        self._known[str(path)] = [key, total.hexdigest()]
        self._changed = True
        return total.hexdigest()

    def save(self) -> None:
        """Write the memory when it learnt something; a full cache folder is no error."""
        if self._changed:
            try:
                write_atomic(_memory(), json.dumps(self._known))
            except OSError:
                return


def _memory() -> Path:
    return cache_folder("digests.json")
