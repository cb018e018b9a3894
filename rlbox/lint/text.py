"""Parts of a document that know where they stand in it, and their syntax trees."""

from __future__ import annotations

import bisect
import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_IGNORE = re.compile(r"rlbox:\s*ignore=([\w-]+(?:\s*,\s*[\w-]+)*)")
_ONLY_COMMENT = re.compile(r"\s*(?:#|//|<!--)")


@dataclass(frozen=True)
class Fragment:
    """A part of a document; `offsets` has the place of each character in the document, and that of the end."""

    text: str
    offsets: Sequence[int]

    @property
    def start(self) -> int:
        return self.offsets[0]

    def cut(self, start: int, end: int | None = None) -> Fragment:
        """Return the characters from `start` up to `end`."""
        end = len(self.text) if end is None else end
        return Fragment(self.text[start:end], self.offsets[start : end + 1])

    def lines(self) -> list[Fragment]:
        """Return the lines with their ends."""
        return [self.cut(*line.span()) for line in re.finditer(r"[^\n]*\n|[^\n]+", self.text)]


def join(fragments: Iterable[Fragment]) -> Fragment:
    """Return fragments of one document as one."""
    fragments = list(fragments)
    offsets = [offset for fragment in fragments for offset in fragment.offsets[:-1]]
    end = fragments[-1].offsets[-1] if fragments else 0
    return Fragment("".join(fragment.text for fragment in fragments), [*offsets, end])


class LineIndex:
    """Where the lines of a text begin; lines and columns count from 1."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.starts = [0, *(newline.end() for newline in re.finditer("\n", text))]

    def number(self, offset: int) -> int:
        return bisect.bisect_right(self.starts, offset)

    def line_and_column(self, offset: int) -> tuple[int, int]:
        line = self.number(offset)
        return line, offset - self.starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return a line without its end; empty outside the text."""
        return self.lines[number - 1] if 1 <= number <= len(self.lines) else ""

    def ignored_rules(self, number: int) -> frozenset[str]:
        """Return the rules that a comment on the line, or one alone on the line above, switches off for it."""
        comments = _IGNORE.findall(self.line(number))
        above = self.line(number - 1)
        if _ONLY_COMMENT.match(above):
            comments += _IGNORE.findall(above)
        return frozenset(rule.strip() for rules in comments for rule in rules.split(","))


@cache
def load_parser(grammar: str) -> Parser:
    """Return the parser of `bash` or `containerfile`; `SpecError` when the extra `lint` is not installed."""
    try:
        from tree_sitter import Language, Parser

        return Parser(Language(importlib.import_module(f"tree_sitter_{grammar}").language()))
    except ImportError as error:
        raise SpecError(
            _("rlbox lint needs tree-sitter, which is not installed"),
            where=str(error.name),
            next_step="pip install 'rlbox[lint]'",
        ) from error


class SyntaxTree:
    """A fragment as a tree; `text` is what is parsed, as long as the fragment, where that differs from it."""

    def __init__(self, grammar: str, source: Fragment, text: str = "") -> None:
        self.source = source
        data = (text or source.text).encode("utf-8", "replace")
        self.root = load_parser(grammar).parse(data).root_node
        self._characters: list[int] = []  # of each byte, where they differ
        if len(data) != len(source.text):
            sizes = (len(char.encode("utf-8", "replace")) for char in source.text)
            self._characters = [*(i for i, size in enumerate(sizes) for _byte in range(size)), len(source.text)]

    def index(self, byte: int) -> int:
        """Return the number of the character at a byte."""
        return self._characters[byte] if self._characters else byte

    def fragment(self, node: Node) -> Fragment:
        return self.source.cut(self.index(node.start_byte), self.index(node.end_byte))
