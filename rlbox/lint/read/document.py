"""A document as the lint sees it: what it sets, runs and names, and where; filled by `Reading`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from rlbox.lint.read.calls import Call, Option
from rlbox.lint.read.shell import Stray
from rlbox.lint.read.text import Lines, Piece
from rlbox.lint.read.words import Word

HERE: frozenset[str] = frozenset()
_DEEPEST = 6
_LONGEST_EXPANSION = 10_000


@dataclass(frozen=True)
class Setting:
    """A variable and the value it gets; `how` says where: shell, word, python, dockerfile, yaml, …"""

    name: str
    value: str
    start: int
    how: str
    block: int
    within: frozenset[str] = HERE


@dataclass(frozen=True)
class Image:
    """An image that is built on or run."""

    name: str
    start: int
    within: frozenset[str] = HERE


@dataclass(frozen=True)
class Snippet:
    """Python that was understood; `how` is file, -c or stdin, `piece` its text, `call` what runs it."""

    tree: ast.Module
    piece: Piece
    lines: Lines
    how: str
    call: Call | None = None

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Return where a node begins in the document."""
        before = self.lines.line(node.lineno).encode()[: node.col_offset]
        offset = self.lines.starts[node.lineno - 1] + len(before.decode("utf-8", "ignore"))
        return self.piece.at[min(offset, len(self.piece.text))]


class Names:
    """The values of shell variables, as far as the document gives them."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[int, str]]] = {}

    def note(self, name: str, value: str, start: int) -> None:
        """Remember that `name` gets `value` at `start`."""
        self._values.setdefault(name, []).append((start, value))

    def value(self, name: str, before: int) -> str | None:
        """Return the value that `name` has at an offset: the last one given above, else the first one below."""
        found = self._values.get(name)
        if not found:
            return None
        above = [value for start, value in found if start < before]
        return above[-1] if above else found[0][1]

    def resolve(self, text: str, before: int, depth: int = 0) -> str:
        """Return `text` with every variable that is known put in."""
        if ("$" not in text and "{" not in text) or depth > _DEEPEST:
            return text

        def put(hit: re.Match[str]) -> str:
            name = hit["plain"] or hit["braced"] or hit["field"]
            value = self.value(name, before)
            value = hit["default"] if value is None and hit["default"] is not None else value
            own = re.fullmatch(rf"\$\{{{name}:?[-=]([^{{}}]*)\}}", value or "")
            value = own.group(1) if own else value
            if value is None or len(value) > _LONGEST_EXPANSION or value == hit.group():
                return hit.group()
            return self.resolve(value, before, depth + 1) if f"${name}" not in value else value

        return _EXPANSION.sub(put, text)[:_LONGEST_EXPANSION]


_EXPANSION = re.compile(
    r"\$(?P<plain>\w+)|\$\{(?P<braced>\w+)(?::?[-=](?P<default>[^{}]*))?\}|(?<!\$)\{(?P<field>(?:port|param|env)\.\w+)\}"
)


@dataclass
class Document:
    """Everything of one file that rules look at."""

    name: str
    kind: str
    text: str
    lines: Lines
    settings: list[Setting] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    snippets: list[Snippet] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    strings: list[Word] = field(default_factory=list)  # values of data files
    patterns: list[Word] = field(default_factory=list)  # regular expressions of data files
    flags: list[tuple[str, int]] = field(default_factory=list)  # what stands there, as `syntax` or a key that is true
    pins: dict[str, str] = field(default_factory=dict)  # versions that it installs itself
    reads: set[str] = field(default_factory=set)  # variables that the document reads itself
    names: Names = field(default_factory=Names)

    def says(self, pattern: str) -> bool:
        """Whether the text of the document, prose and comments included, has the pattern."""
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    @cached_property
    def places(self) -> dict[tuple[int, int], list[Call]]:
        """The calls of each command, the wrapping first, by identity of the pipeline and place in it."""
        found: dict[tuple[int, int], list[Call]] = {}
        for call in self.calls:
            found.setdefault((id(call.pipeline), call.index), []).append(call)
        return found

    @cached_property
    def by_program(self) -> dict[str, list[Call]]:
        """The calls by the first word of their program."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.program.partition(" ")[0], []).append(call)
        return found

    def before(self, call: Call) -> list[Call]:
        """Return what is run in front of a call in its pipeline, the wrapping first."""
        return self.places.get((id(call.pipeline), call.index - 1), [])

    def called(self, *programs: str) -> Iterator[Call]:
        """Yield the calls of programs."""
        first = dict.fromkeys(program.partition(" ")[0] for program in programs)
        return (call for word in first for call in self.by_program.get(word, ()) if call.program in programs)

    def value(self, option: Option) -> str:
        """Return an option's value with known variables put in."""
        return self.names.resolve(option.value, option.start)
