"""What was compiled on this machine: notes beside the store's objects, by recipe, so that nothing is compiled twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from rlbox.artifacts.object_store import Store
from rlbox.system.files import write_atomic
from rlbox.target.lock import Compiled, Package


@dataclass(frozen=True, kw_only=True)
class Made:
    """A wheel that was compiled: its file, how long that took in s, how many compilers ran at a time.

    `units` maps each file that a compiler was started for to its seconds; those kept from before have 0.
    """

    name: str
    version: str
    file: str
    sha256: str
    size: int
    seconds: float
    jobs: int
    units: Mapping[str, int]
    schema: Literal[1] = 1

    def package(self, compiled: Compiled) -> Package:
        """Return the wheel as its lock names it."""
        return Package(
            name=compiled.name,
            version=self.version,
            file=self.file,
            sha256=self.sha256,
            size=self.size,
            source=compiled.origin,
        )


def note_made(store: Store, compiled: Compiled, made: Made) -> None:
    """Write down what a recipe gave."""
    write_atomic(_note(store, compiled.recipe), json.dumps(asdict(made), ensure_ascii=False, indent=1) + "\n")


def find_made(store: Store, compiled: Compiled) -> Made | None:
    """Return what a recipe gave on this machine, as long as the store holds the wheel."""
    made = _read(_note(store, compiled.recipe))
    return made if made and store.intact(made.sha256, made.size) else None


def known_units(store: Store, name: str) -> tuple[int, ...]:
    """Return how many seconds each file of a wheel took when one of that name was compiled here last; empty: never."""
    notes = sorted((store.root / "compiled").glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    found = (made for made in map(_read, notes) if made and made.name == name and any(made.units.values()))
    return tuple(made.units.values()) if (made := next(found, None)) else ()


def _read(path: Path) -> Made | None:
    try:
        return TypeAdapter(Made).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _note(store: Store, recipe: str) -> Path:
    return store.root / "compiled" / f"{recipe}.json"
