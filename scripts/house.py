"""Print the rooms of rlbox and the arrows between them, from the imports alone: `python scripts/house.py [--check]`.

The table is that of ARCHITECTURE.md; `--check` exits 1 with the difference when the two say different things.
`reaches` names the rooms that it imports, but for those that all may use. `--sizes` counts modules, lines and tokens of
each room's Python, `--sizes COMMIT` also those of a commit and what became more.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGE = CHECKOUT / "rlbox"
PAGE = CHECKOUT / "ARCHITECTURE.md"
FILES_WITH_A_ROW = ("app",)
"""Files of `rlbox/` that count as rooms: they stand on something; all others are the room `rlbox`."""
COMMON = ("rlbox", "spec", "app", "machine", "files")
"""Rooms that every later one may use, so that the table does not name them again."""
HEAD = "| floor | room | what it is for | reaches |"


@dataclass(frozen=True, kw_only=True)
class Room:
    """A row of the table: `acts` is a room without a pure part; `reaches` is what the row says."""

    floor: str
    name: str
    says: str
    reaches: tuple[str, ...]
    acts: bool = False

    @property
    def row(self) -> str:
        """The row as it stands in the table."""
        mark = " (acts)" if self.acts else ""
        return f"| {self.floor} | `{self.name}`{mark} | {self.says} | {' '.join(self.reaches) or '–'} |"


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """One import: from module to module, at a line."""

    source: str
    goal: str
    line: int


def rooms_of_page(text: str) -> tuple[Room, ...]:
    """Return the rows of the table in ARCHITECTURE.md, the ground first."""
    body = text[text.index(HEAD) :].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    return tuple(
        Room(
            floor=floor,
            name=re.findall(r"`(\w+)`", name)[0],
            says=says,
            reaches=() if reaches == "–" else tuple(reaches.split()),
            acts="(acts)" in name,
        )
        for floor, name, says, reaches in rows
    )


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_shipped" not in path.parts:
            found[".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """Return the room of a module; `rlbox` for a file that lies beside the rooms."""
    name = module.split(".")[1] if "." in module else ""
    return name if name in FILES_WITH_A_ROW or ((PACKAGE / name).is_dir() and name) else "rlbox"


@cache
def tree(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file."""
    return tuple(ast.walk(tree(path)))


@cache
def imports(path: Path) -> tuple[tuple[str, tuple[str, ...], int], ...]:
    """Return module, names and line of everything imported, wherever it stands, for type checkers alone, too."""
    found: list[tuple[str, tuple[str, ...], int]] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, (), node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", tuple(alias.name for alias in node.names), node.lineno))
    return tuple(found)


def arrows(known: Mapping[str, Path]) -> Iterator[Arrow]:
    """Yield the imports of rlbox's own modules by its own modules."""
    for source, path in known.items():
        for module, names, line in imports(path):
            inner = {name: f"{module}.{name}" for name in names if f"{module}.{name}" in known}
            for goal in inner.values():
                yield Arrow(source=source, goal=goal, line=line)
            if module in known and (len(inner) < len(names) or not names):
                yield Arrow(source=source, goal=module, line=line)


def reached(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the rooms that each room imports, itself left out; `python -m rlbox` is a door, and counts for none."""
    found: dict[str, set[str]] = {}
    for arrow in arrows({name: path for name, path in known.items() if name != "rlbox.__main__"}):
        found.setdefault(room_of(arrow.source), set())
        if room_of(arrow.goal) != room_of(arrow.source):
            found[room_of(arrow.source)].add(room_of(arrow.goal))
    return found


def table(known: Mapping[str, Path], page: tuple[Room, ...]) -> list[str]:
    """Return the table as the imports have it; order, floors and words are the page's own."""
    order = [room.name for room in page]
    found = reached(known)
    rows = [HEAD, "|---|---|---|---|"]
    for room in page:
        names = [name for name in order if name in found.get(room.name, ()) and name not in COMMON]
        later = sorted(name for name in found.get(room.name, ()) if name not in order)
        acts = room.name != "rlbox" and room.acts
        row = Room(floor=room.floor, name=room.name, says=room.says, reaches=(*names, *later), acts=acts)
        rows.append(row.row)
    return rows + [f"| ? | `{name}` | not in the table | |" for name in sorted(set(found) - set(order))]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Modules of a room, their lines, and their tokens without comments and docstrings: what no formatting wins."""

    modules: int = 0
    lines: int = 0
    tokens: int = 0

    def with_module(self, text: str) -> Size:
        """Return the size with one more module."""
        return Size(
            modules=self.modules + 1, lines=self.lines + len(text.splitlines()), tokens=self.tokens + tokens(text)
        )

    def __add__(self, other: Size) -> Size:
        return Size(
            modules=self.modules + other.modules, lines=self.lines + other.lines, tokens=self.tokens + other.tokens
        )


NOTHING = Size()


def tokens(text: str) -> int:
    """Return the number of tokens of a module that are neither layout, comment nor a statement of a lone string."""
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
    strings = sum(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for node in ast.walk(ast.parse(text))
    )
    return sum(row.type not in layout for row in tokenize.generate_tokens(io.StringIO(text).readline)) - strings


def sizes(texts: Iterable[tuple[str, str]]) -> dict[str, Size]:
    """Return the size of each room, from the modules' dotted names and texts."""
    found: dict[str, Size] = {}
    for module, text in texts:
        found[room_of(module)] = found.get(room_of(module), NOTHING).with_module(text)
    return found


def texts_at(commit: str) -> Iterator[tuple[str, str]]:
    """Yield dotted name and text of every module of the package as a commit has it."""
    git = ("git", "-C", str(CHECKOUT))
    names = subprocess.check_output([*git, "ls-tree", "-r", "--name-only", commit, "rlbox/"], text=True).split()
    for name in names:
        if name.endswith(".py"):
            text = subprocess.check_output([*git, "show", f"{commit}:{name}"], text=True)
            yield name.removesuffix(".py").removesuffix("/__init__").replace("/", "."), text


def show_sizes(known: Mapping[str, Path], before: str) -> Iterator[str]:
    """Yield the table of sizes: of now, or of a commit, now and the difference."""
    now = sizes((module, path.read_text(encoding="utf-8")) for module, path in known.items())
    old = sizes(texts_at(before)) if before else now
    rows = [(name, old.get(name, NOTHING), now.get(name, NOTHING)) for name in sorted({*old, *now})]
    rows.append(("all", sum(old.values(), NOTHING), sum(now.values(), NOTHING)))
    parts = ("modules", "lines", "tokens")
    yield f"{'room':<12}" + "".join(f"{part:>9}{'before':>9}{'more':>8}" if before else f"{part:>9}" for part in parts)
    for name, was, size in rows:
        pairs = [(getattr(was, part), getattr(size, part)) for part in parts]
        yield f"{name:<12}" + "".join(f"{b:>9}{a:>9}{b - a:>+8}" if before else f"{b:>9}" for a, b in pairs)


def main(words: list[str]) -> int:
    """Print the table, with `--check` what differs from ARCHITECTURE.md, with `--sizes [COMMIT]` the rooms' sizes."""
    known = modules()
    if words[:1] == ["--sizes"] and len(words) <= 2:
        sys.stdout.writelines(f"{line}\n" for line in show_sizes(known, "".join(words[1:])))
        return 0
    page = rooms_of_page(PAGE.read_text(encoding="utf-8"))
    rows = table(known, page)
    if words == ["--check"]:
        told = [HEAD, "|---|---|---|---|", *(room.row for room in page)]
        wrong = list(difflib.unified_diff(told, rows, str(PAGE.name), "the imports", lineterm="", n=0))
        sys.stderr.writelines(f"{line}\n" for line in wrong)
        return 1 if wrong else 0
    sys.stdout.write("\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
