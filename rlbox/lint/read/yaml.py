"""Fill a document from YAML, line by line: no tag, anchor or type matters to what a lint looks for."""

from __future__ import annotations

import re

from rlbox.lint.read.data import Facts, read_flow, unescape
from rlbox.lint.read.reader import Reader
from rlbox.lint.read.text import Piece, join
from rlbox.lint.read.words import Word

_LINE = re.compile(
    r"(?P<indent>[ ]*)(?P<dashes>(?:-[ ]+)*)"
    r"(?:(?P<key>\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'#{\[][^:\n]{0,120}?):(?=\s|$))?[ \t]*"
)
_BLOCK = re.compile(r"[|>][+-]?\d?[+-]?\s*(?:#.*)?$")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_LONGEST_FLOW = 400  # lines


def read_yaml(reader: Reader, piece: Piece) -> None:
    """Read YAML, as far as it goes."""
    _Yaml(reader, piece).read()


class _Yaml:
    def __init__(self, reader: Reader, piece: Piece) -> None:
        self.facts = Facts(reader)
        self.lines = piece.lines()
        self.stack: list[tuple[int, str]] = []  # indentation and key of what is open
        self.items: tuple[tuple[str, ...], list[Word]] = ((), [])
        self.i = 0

    def read(self) -> None:
        while self.i < len(self.lines):
            line = self.lines[self.i]
            self.i += 1
            if line.text.strip() and not line.text.lstrip().startswith("#"):
                self._line(line)
        self._end_items()

    def _line(self, line: Piece) -> None:
        hit = _LINE.match(line.text)
        if hit is None:
            return
        indent = len(hit["indent"]) + len(hit["dashes"])
        limit = len(hit["indent"]) if hit["dashes"] else indent
        while self.stack and self.stack[-1][0] >= (limit + 1 if hit["dashes"] else limit):
            self.stack.pop()
        path = tuple(key for _, key in self.stack)
        if hit["key"]:
            self.stack.append((indent, hit["key"].strip("\"'")))
            path = (*path, hit["key"].strip("\"'"))
        if not (hit["dashes"] and not hit["key"]) or path != self.items[0]:
            self._end_items()
        value = self._value(line.cut(hit.end(), len(line.text)), limit, path)
        if value is None:
            return
        if hit["key"]:
            self.facts.scalar(path, value)
        elif hit["dashes"]:
            self.items = (path, [*self.items[1], value])

    def _end_items(self) -> None:
        path, words = self.items
        self.items = ((), [])
        if words:
            self.facts.array(path, words)

    def _value(self, rest: Piece, indent: int, path: tuple[str, ...]) -> Word | None:
        """Return the value that begins on a line; None when there is none, or it was a list or table in brackets."""
        text = rest.text.rstrip()
        if not text or text.startswith(("#", "&", "*", "!")):
            return None
        if _BLOCK.match(text):
            block = self._block(indent)
            return Word(block.text, "s" * len(block.text), block.at)
        if text[0] in "[{":
            read_flow(self.facts, path, self._flow(rest))
            return None
        if text[0] in "\"'":
            end = text.find(text[0], 1)
            while text[0] == '"' and end > 0 and text[end - 1] == "\\":
                end = text.find('"', end + 1)
            return unescape(rest.cut(1, end if end > 0 else len(text)), "d" if text[0] == '"' else "s")
        cut = _COMMENT.search(text)
        end = cut.start() if cut else len(text)
        return Word(text[:end], "p" * end, rest.at[: end + 1])

    def _block(self, indent: int) -> Piece:
        """Return the lines of a block scalar without their common indentation."""
        taken: list[Piece] = []
        while self.i < len(self.lines):
            line = self.lines[self.i]
            if line.text.strip() and len(line.text) - len(line.text.lstrip(" ")) <= indent:
                break
            taken.append(line)
            self.i += 1
        margin = min((len(p.text) - len(p.text.lstrip(" ")) for p in taken if p.text.strip()), default=0)
        if not taken:
            return Piece("", [0])
        return join(line.cut(min(margin, len(line.text) - 1), len(line.text)) for line in taken if line.text)

    def _flow(self, rest: Piece) -> Piece:
        """Return a list or table in brackets, which may go on over lines."""
        parts = [rest]
        depth = _depth(rest.text)
        while depth > 0 and self.i < len(self.lines) and len(parts) < _LONGEST_FLOW:
            parts.append(self.lines[self.i])
            depth += _depth(self.lines[self.i].text)
            self.i += 1
        return join(parts)


def _depth(text: str) -> int:
    return sum(text.count(mark) for mark in "[{") - sum(text.count(mark) for mark in "]}")
