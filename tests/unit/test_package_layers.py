"""Packages import only packages above them in the table of ARCHITECTURE.md, and modules import in no circle."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes import CHECKOUT

from rlbox.image.context import is_hashed_rlbox_file

PACKAGE = CHECKOUT / "rlbox"
TABLE_ROW = re.compile(r"^\| \w+ \| `(\w+)` \|", re.M)
PACKAGES = TABLE_ROW.findall((CHECKOUT / "ARCHITECTURE.md").read_text("utf-8"))
RANKS = {package: rank for rank, package in enumerate(PACKAGES)}
ENTRY_POINTS = (
    *("rlbox.doctor.__main__", "rlbox.sandbox.__main__", "rlbox.supervise.__main__"),
    *("rlbox.evaluation.evaluate", "rlbox.evaluation.selection"),  # imported by the programs of jobs
)


class Import(NamedTuple):
    source: str
    target: str
    line: int


def package_of(module: str) -> str:
    """Return the package of a module; `app` stands on packages, so that it counts as one."""
    name = module.split(".")[1] if "." in module else ""
    return name if name == "app" or (name and (PACKAGE / name).is_dir()) else "rlbox"


@functools.cache
def find_modules() -> dict[str, Path]:
    paths = (path for path in sorted(PACKAGE.rglob("*.py")) if "_shipped" not in path.parts)
    return {
        ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths
    }


@functools.cache
def find_imports() -> tuple[Import, ...]:
    """Return all imports of rlbox's modules by its modules; those for type checkers count, too."""
    return tuple(
        Import(module, target, node.lineno)
        for module, path in find_modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for target in imported_modules(node)
    )


def imported_modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in find_modules())
    elif isinstance(node, ast.ImportFrom):
        modules = [name for alias in node.names if (name := f"{node.module}.{alias.name}") in find_modules()]
        yield from modules
        if node.module in find_modules() and len(modules) < len(node.names):
            yield node.module


def test_packages_have_a_row_each() -> None:
    assert {package_of(module) for module in find_modules()} == set(PACKAGES)


def test_packages_import_only_packages_above_them() -> None:
    assert [
        found
        for found in find_imports()
        if found.source not in ("rlbox", "rlbox.__main__")
        if RANKS[package_of(found.target)] > RANKS[package_of(found.source)]
    ] == []


def test_modules_import_in_no_circle() -> None:
    targets: dict[str, set[str]] = defaultdict(set)
    for found in find_imports():
        targets[found.source].add(found.target)
    try:
        TopologicalSorter(targets).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_what_a_container_runs_decides_its_image() -> None:
    targets: dict[str, set[str]] = defaultdict(set)
    for found in find_imports():
        targets[found.source].add(found.target)
    reached: set[str] = set()
    waiting = list(ENTRY_POINTS)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += targets[module]
    files = [find_modules()[module].relative_to(PACKAGE).as_posix() for module in sorted(reached)]
    assert [name for name in files if not is_hashed_rlbox_file(name)] == ["version.py"]
