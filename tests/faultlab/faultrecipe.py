"""What a recipe of the fault lab says, and which half it belongs to."""

from __future__ import annotations

import hashlib
import lzma
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LAB = Path(__file__).resolve().parent
Half = Literal["open", "held"]
HALVES: tuple[Half, ...] = ("open", "held")
RECIPES = "recipes.toml.xz"
LABELS = "labels.json.xz"
KEYS = {
    "title", "cause", "also", "on", "root", "nth", "file", "versions", "options", "memory", "shm", "network",
    "timeout_s", "lane", "node", "rank", "run", "nodes", "files", "fatal", "needs", "note", "victims", "cascade",
    "exit", "other", "extra", "benign", "near",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One fault, or one healthy run, and how it is had.

    `root` is a regular expression: the `nth` line that it finds, in `file` where a run leaves several, is the one that
    an expert would point at; a line that `near` finds is as right. `on` names environments of `envs.toml`. `victims`
    finds the lines of those that only noticed. `needs` says what a machine must have for it (`gpu`, `gpus`): elsewhere
    it is not recorded. `other` is a second environment, at /opt/other; `extra` are packages without what they ask for,
    below /opt/extra, on no path. `benign` are ids of the taxonomy's noise that a healthy run shows.
    """

    name: str
    title: str
    cause: str
    on: tuple[str, ...]
    run: str
    root: str = ""
    near: str = ""
    nth: int = 1
    file: str = ""
    also: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    memory: str = "4g"
    shm: str = "1g"
    network: str = "none"
    timeout_s: float = 180
    lane: str = ""
    node: str = ""
    rank: int | None = None
    nodes: int = 1
    files: Mapping[str, str] = field(default_factory=dict)
    fatal: bool = True
    needs: str = ""
    note: str = ""
    victims: str = ""
    cascade: bool = False
    exit: int | None = None
    other: str = ""
    extra: tuple[str, ...] = ()
    benign: tuple[str, ...] = ()

    @property
    def half(self) -> Half:
        """The half it belongs to; nobody chooses it."""
        return half_of(self.name)

    @property
    def labels(self) -> Path:
        """The labels of its half."""
        return LAB / self.half / LABELS


def half_of(name: str) -> Half:
    """Return the half of a recipe by the hash of its name."""
    return "held" if hashlib.sha256(name.encode()).digest()[0] & 1 else "open"


def make_recipe(name: str, data: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a table says.

    Raises
    ------
    ValueError
        A key is unknown, or something is missing.
    """
    if unknown := set(data) - KEYS:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    values.setdefault("fatal", values["cause"] != "none")
    recipe = Recipe(name=name, **values)
    if recipe.fatal and not recipe.root:
        raise ValueError(f"{name}: a fault has a root")
    return recipe


def recipes(half: Half | None = None) -> list[Recipe]:
    """Return every recipe, of one half or of both, by name."""
    halves = HALVES if half is None else (half,)
    tables = [tomllib.loads(lzma.decompress((LAB / part / RECIPES).read_bytes()).decode()) for part in halves]
    return [make_recipe(name, data) for table in tables for name, data in sorted(table.items())]
