"""The house: the table of ARCHITECTURE.md is what the imports say, and every room keeps its rules."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.image.act.context import INSIDE


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / f"scripts/{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


house, walk = _script("house"), _script("walk")
KNOWN = house.modules()
ROOMS = house.rooms_of_page((CHECKOUT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
RANK = {room.name: number for number, room in enumerate(ROOMS)}
ACTING_ROOMS = {room.name for room in ROOMS if room.acts}
PYTHON = [*KNOWN.values()] + [
    path for folder in ("jobs", "benchmarks", "scripts") for path in sorted((CHECKOUT / folder).rglob("*.py"))
]

ACTING_LIBRARIES = (
    "docker",
    "subprocess",
    "socket",
    "time",
    "asyncio",
    "multiprocessing",
    "threading",
    "urllib3",
    "psutil",
)
# Calls that read a clock, the environment or the working directory.
CLOCKS = {"now", "utcnow", "today", "getcwd", "cwd", "getenv", "environ", "monotonic", "perf_counter", "time_ns"}
# Stacks live in images; the tool runs without them.
STACK = ("ray", "torch", "vllm", "sglang", "flash_attn", "transformers", "trl")
FOLDER_MODULES, FOLDER_MEDIAN, MODULE_LINES, FUNCTION_LINES = 16, 8, 400, 60

# Through how many files a parameter may go: half of what it was when folders were layers.
WALKS = {
    "rlbox/cli/images/build.py:verb:name": 14,
    "rlbox/cli/runs/run.py:verb:data": 9,
    "rlbox/cli/images/push.py:verb:destination": 6,
}

# One door to each outside thing: the libraries and calls that lead to it, the rooms or modules that have it, and who
# still goes another way. These lists may only get shorter: a module that stops doing so leaves its list.
DOORS = {
    "processes": (
        ("subprocess", "multiprocessing", "pty", "os.system", "os.popen", "os.fork", "os.posix_spawn", "os.exec"),
        ("rlbox.machine.act",),
        {
            # run by the stack's interpreter, which has no rlbox: it forks itself before it loads what may crash
            "rlbox.doctor.act.programs.probe_torch",
            # what they start, they start behind walls that are raised between fork and exec
            "rlbox.sandbox.act.keeper",
            "rlbox.sandbox.act.keepers",
            "rlbox.sandbox.act.ready",
            "rlbox.sandbox.act.walls",
            "rlbox.sandbox.act.programs.ready.sitecustomize",
            "rlbox.cluster.act.inside.join",  # sent to a worker, whose stack has no rlbox
            "rlbox.cluster.act.programs.node_run",  # sent to a node, whose own Python runs it
        },
    ),
    "the engine": (("docker",), ("rlbox.engine.act",), set[str]()),
    "HTTP": (
        ("urllib3", "http.client", "requests", "urllib.request", "httpx", "aiohttp"),
        ("rlbox.machine.act.http",),
        {
            "rlbox.engine.act.docker",  # docker-py lets errors of its own HTTP through
            "rlbox.cluster.act.programs.node_http",  # sent to a node, which has neither docker-py nor urllib3
        },
    ),
    "the C library": (
        ("ctypes.CDLL",),
        ("rlbox.machine.act.libc",),
        {
            "rlbox.doctor.act.probe.host",  # not the C library but CUDA's
            "rlbox.doctor.act.programs.probe_gpu",  # as these, which the stack's interpreter runs
            "rlbox.doctor.act.programs.probe_torch",
            "rlbox.cluster.act.programs.node_keeper",  # sent to a node, whose own Python runs it
        },
    ),
    "httpx": (("httpx",), (), set[str]()),
    "locks": (
        ("fcntl.flock", "fcntl.lockf"),
        ("rlbox.files.act.lock",),
        {"rlbox.cluster.act.programs.node_hold"},  # sent to a node, whose own Python runs it
    ),
    "zstd": (("compression.zstd", "backports.zstd", "zstandard"), ("rlbox.files.act.compression",), set[str]()),
    "other processes": (("psutil",), (), set[str]()),
    "JSON and TOML of others": (
        ("json.loads", "json.load", "json.JSONDecoder", "tomllib", "tomli"),
        ("rlbox.foreign",),
        {
            "rlbox.doctor.act.programs.probe_data",  # run by the stack's interpreter, which has no rlbox
            "rlbox.evaluation.act.programs.gym_make",  # as are these
            "rlbox.evaluation.act.programs.gym_score",
            "rlbox.evaluation.act.programs.math_score",
            "rlbox.evaluation.exports.act.programs.export_tensors",
            "rlbox.evaluation.exports.act.programs.sources",
            "rlbox.sandbox.act.programs.checker",
            "rlbox.sandbox.act.programs.wire",
            "rlbox.cluster.act.programs.node_wire",  # sent to a node
        },
    ),
}
SIZE = re.compile(r"\s?[kKMGTP]i?B\b")
SPAN = re.compile(r" (?:s|sec|seconds?|min|minutes?|h)\b")


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def acts(module: str) -> bool:
    """Whether a module may act: it lies in `act/`, in a room that acts throughout, or is a program's entry."""
    return ".act" in module or house.room_of(module) in ACTING_ROOMS or module.endswith("__main__")


def place(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(CHECKOUT)}:{line}: {what}"


def imported(module: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything a module imports, `from a import b` as `a.b`, wherever it stands."""
    for name, names, line in house.imports(KNOWN[module]):
        yield from ((line, f"{name}.{one}") for one in names) if names else ((line, name),)


def test_the_table_is_what_the_imports_say(capsys: pytest.CaptureFixture[str]) -> None:
    """Stale? `python scripts/house.py` prints it."""
    code = house.main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_every_room_has_a_row_and_says_what_it_is() -> None:
    rooms = {house.room_of(module) for module in KNOWN} - {"rlbox"}
    assert rooms == set(RANK) - {"rlbox"}
    assert [room for room in rooms if not (ast.get_docstring(house.tree(KNOWN[f"rlbox.{room}"])))] == []


def test_a_room_imports_only_rooms_above_it() -> None:
    """Imports for type checkers count: they are what a reader has to open."""
    found = [
        place(KNOWN[arrow.source], arrow.line, arrow.goal)
        for arrow in arrows()
        if arrow.source not in ("rlbox", "rlbox.__main__")
        if RANK[house.room_of(arrow.goal)] > RANK[house.room_of(arrow.source)]
    ]
    assert found == []


def test_pure_modules_import_nothing_that_acts() -> None:
    found = [
        place(KNOWN[arrow.source], arrow.line, arrow.goal)
        for arrow in arrows()
        if not acts(arrow.source) and acts(arrow.goal) and arrow.source != "rlbox"
    ]
    found += [
        place(KNOWN[module], line, name)
        for module in KNOWN
        if not acts(module) and house.room_of(module) != "rlbox"
        for line, name in imported(module)
        if is_in(name, ACTING_LIBRARIES)
    ]
    assert found == []


def test_pure_modules_read_no_clock_and_no_environment() -> None:
    found = [
        place(KNOWN[module], node.lineno, node.attr)
        for module in KNOWN
        if not acts(module) and house.room_of(module) not in ("rlbox", "app")
        for node in house.nodes(KNOWN[module])
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS and isinstance(node.value, (ast.Name, ast.Attribute))
        if ast.unparse(node.value) in {"os", "time", "datetime", "datetime.datetime", "date", "datetime.date", "Path"}
    ]
    assert found == []


def test_no_circle_of_modules() -> None:
    goals: dict[str, set[str]] = defaultdict(set)
    for arrow in arrows():
        goals[arrow.source].add(arrow.goal)
    try:
        TopologicalSorter(goals).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_folders_are_small() -> None:
    counts = Counter(path.parent for path in KNOWN.values() if path.name != "__init__.py")
    assert {place(folder, 1, str(count)) for folder, count in counts.items() if count > FOLDER_MODULES} == set()
    assert statistics.median(counts.values()) <= FOLDER_MEDIAN


def test_a_public_class_is_of_one_room() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, path in KNOWN.items():
        for node in house.tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms[node.name].add(house.room_of(module))
    assert {name: sorted(where) for name, where in rooms.items() if len(where) > 1} == {}


@functools.cache
def called(module: str) -> frozenset[str]:
    """Return everything a module imports, and the attributes of modules that it uses (`os.fork`)."""
    used = (node for node in house.nodes(KNOWN[module]) if isinstance(node, ast.Attribute))
    attributes = {f"{node.value.id}.{node.attr}" for node in used if isinstance(node.value, ast.Name)}
    return frozenset(attributes.union(name for _, name in imported(module)))


@functools.cache
def arrows() -> tuple[Any, ...]:
    """Return the imports of rlbox's modules by one another."""
    return tuple(house.arrows(KNOWN))


@pytest.mark.parametrize("door", DOORS)
def test_one_door_to_each_outside_thing(door: str) -> None:
    """The list is exact, so that it gets shorter with the code."""
    ways, rooms, others = DOORS[door]
    found = {module for module in KNOWN for name in called(module) if leads(name, ways)}
    assert {module for module in found if not is_in(module, rooms)} == others


def leads(name: str, ways: tuple[str, ...]) -> bool:
    """Whether a name is one of `ways`, below one, or a sister of a call: `os.execve` of `os.exec`."""
    return is_in(name, ways) or any(name.startswith(way) for way in ways if way.startswith("os."))


def written_before(unit: re.Pattern[str]) -> Iterator[tuple[str, ast.expr]]:
    """Yield module and value of everything that an f-string writes a unit behind; `amounts` alone may."""
    for module in KNOWN:
        texts = (node for node in house.nodes(KNOWN[module]) if isinstance(node, ast.JoinedStr))
        for text in texts if module != "rlbox.amounts" else ():
            for value, behind in zip(text.values, text.values[1:], strict=False):
                shown = isinstance(value, ast.FormattedValue) and isinstance(behind, ast.Constant)
                if shown and unit.match(behind.value):
                    yield module, value.value


def places_of(unit: re.Pattern[str]) -> list[str]:
    return [place(KNOWN[module], value.lineno, ast.unparse(value)) for module, value in written_before(unit)]


def test_one_size_as_text() -> None:
    """`amounts.size_text` writes bytes, `card_text` those of a GPU, `asked_text` what a spec asks for in GiB."""
    assert places_of(SIZE) == []


def test_one_span_as_text() -> None:
    """`amounts.duration_text` writes what was measured, `limit_text` what was chosen, `fine_text` where ms matter."""
    assert places_of(SPAN) == []


def test_walks_are_short() -> None:
    """`python scripts/walk.py` names the files."""
    tree = walk.House(CHECKOUT)
    counts = {start: len(walk.files_of(walk.walk(tree, start))) for start in WALKS}
    assert set(WALKS) == set(walk.WALKS)
    assert {start: count for start, count in counts.items() if not 1 < count <= WALKS[start]} == {}


def test_what_goes_into_an_image_is_known_to_its_digest() -> None:
    floors = {room.name for room in ROOMS if room.floor in ("ground", "inside")}
    assert {*INSIDE, "rlbox", "app"} == floors


def test_the_stack_is_not_imported_by_the_tool() -> None:
    found = [
        place(KNOWN[module], line, name) for module in KNOWN for line, name in imported(module) if is_in(name, STACK)
    ]
    assert found == []


def test_imports_are_absolute() -> None:
    found = [
        place(path, node.lineno, ast.unparse(node))
        for path in PYTHON
        for node in house.nodes(path)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert found == []


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON}
    assert [place(path, count, "lines") for path, count in lengths.items() if count > MODULE_LINES] == []


def test_functions_are_short() -> None:
    found = [
        place(path, node.lineno, f"{node.name}: {node.end_lineno - node.lineno + 1} lines")
        for path in PYTHON
        for node in house.nodes(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert found == []


def test_shell_scripts_are_short() -> None:
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
    assert [name for module, path in KNOWN.items() for name in undocumented(house.tree(path), module)] == []


def test_nobody_prints() -> None:
    found = [
        place(path, node.lineno, "print")
        for path in KNOWN.values()
        for node in house.nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert found == []


LEAVING = ("rlbox.cli", "rlbox.cli.interrupts", "rlbox.sandbox.act.programs.ready.sitecustomize")


def test_only_entry_points_leave_the_process() -> None:
    """Inner code raises."""
    found = [
        place(path, node.lineno, ast.unparse(node.func))
        for module, path in KNOWN.items()
        if not module.endswith("__main__") and module not in LEAVING
        for node in house.nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"sys.exit", "exit", "quit", "os._exit"}
    ]
    assert found == []
