"""The shape of the code: which layer imports which, how long things are, that public names say what they promise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fakes import CHECKOUT

PURE = ("rlbox.spec", "rlbox.plan", "rlbox.fixes")
IMPURE = (
    "rlbox.act",
    "rlbox.cli",
    "rlbox.report",
    "docker",
    "subprocess",
    "socket",
    "time",
    "asyncio",
    "multiprocessing",
)
# Calls that read a clock, the environment or the working directory.
CLOCKS = {"now", "utcnow", "today", "getcwd", "cwd", "getenv", "environ", "monotonic", "perf_counter", "time_ns"}
BELOW = {"rlbox.act": ("rlbox.cli", "rlbox.report"), "rlbox.report": ("rlbox.cli",)}
# Stacks live in images; the tool runs without them.
STACK = ("ray", "torch", "vllm", "sglang", "flash_attn", "transformers", "trl")
MODULE_LINES, FUNCTION_LINES = 400, 60


def modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((CHECKOUT / folder).rglob("*.py"))]
    return [path for path in found if "_shipped" not in path.parts and "__pycache__" not in path.parts]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything imported, `from a import b` as `a.b`, wherever it stands."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names)


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def place(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(CHECKOUT)}:{line}: {what}"


RLBOX = modules("rlbox")
PYTHON = modules("rlbox", "jobs", "benchmarks", "scripts")


def test_there_is_code_to_look_at() -> None:
    assert {"rlbox.spec.load", "rlbox.image.plan", "rlbox.image.act.context", "rlbox.cli.root"} <= set(
        map(name_of, RLBOX)
    )


def test_spec_and_plan_import_nothing_that_acts() -> None:
    found = [
        place(path, line, name)
        for path in RLBOX
        if is_in(name_of(path), PURE)
        for line, name in imports(path)
        if is_in(name, IMPURE)
    ]
    assert found == []


def test_spec_and_plan_read_no_clock_and_no_environment() -> None:
    found = [
        place(path, node.lineno, node.attr)
        for path in RLBOX
        if is_in(name_of(path), PURE)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS and isinstance(node.value, (ast.Name, ast.Attribute))
        if ast.unparse(node.value) in {"os", "time", "datetime", "datetime.datetime", "date", "datetime.date", "Path"}
    ]
    assert found == []


@pytest.mark.parametrize("layer", BELOW)
def test_arrows_run_one_way(layer: str) -> None:
    found = [
        place(path, line, name)
        for path in RLBOX
        if is_in(name_of(path), (layer,))
        for line, name in imports(path)
        if is_in(name, BELOW[layer])
    ]
    assert found == []


def test_the_stack_is_not_imported_by_the_tool() -> None:
    assert [place(p, line, name) for p in RLBOX for line, name in imports(p) if is_in(name, STACK)] == []


def test_imports_are_absolute() -> None:
    assert [place(p, line, name) for p in PYTHON for line, name in imports(p) if name.startswith(".")] == []


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON}
    assert [place(path, count, "lines") for path, count in lengths.items() if count > MODULE_LINES] == []


def test_functions_are_short() -> None:
    found = [
        place(path, node.lineno, f"{node.name}: {node.end_lineno - node.lineno + 1} lines")
        for path in PYTHON
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert found == []


def test_shell_functions_are_short() -> None:
    scripts = [*(CHECKOUT / "scripts").glob("*.sh"), *(CHECKOUT / "templates/scripts").glob("*.sh")]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in scripts}
    assert [place(path, count, "lines") for path, count in lengths.items() if count > MODULE_LINES] == []


def undocumented(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    """Yield public names below `node` without a docstring; what is private, or inside a function, needs none."""
    if not ast.get_docstring(node):
        yield name
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from undocumented(child, f"{name}.{child.name}")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not child.name.startswith("_"):
            overload = any(ast.unparse(mark).endswith((".setter", "overload")) for mark in child.decorator_list)
            if not ast.get_docstring(child) and not overload:
                yield f"{name}.{child.name}"


def test_public_names_have_docstrings() -> None:
    assert [name for path in RLBOX for name in undocumented(tree(path), name_of(path))] == []


def test_nobody_prints() -> None:
    found = [
        place(path, node.lineno, "print")
        for path in RLBOX
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert found == []


def test_only_one_place_leaves_the_process() -> None:
    """Inner code raises; only the entry points end the process."""
    found = [
        place(path, node.lineno, ast.unparse(node.func))
        for path in RLBOX
        if name_of(path) not in {"rlbox.__main__", "rlbox.cli", "rlbox.supervise"}
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"sys.exit", "exit", "quit", "os._exit"}
    ]
    assert found == []
