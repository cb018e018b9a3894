"""A text that is linted, in pieces that know their places, and what is found wrong in it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One defect: `line` and `column` count from 1; `next_step` is the form that works."""

    file: str
    line: int
    column: int
    rule: str
    severity: Severity
    what: str
    next_step: str
    covers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A part of a document; `at` has the offset of each character in the document, and that of the end."""

    text: str
    at: Sequence[int]

    @staticmethod
    def whole(text: str) -> Piece:
        """Return a document as one piece."""
        return Piece(text, range(len(text) + 1))

    def cut(self, start: int, end: int) -> Piece:
        """Return the characters from `start` up to `end`."""
        return Piece(self.text[start:end], self.at[start : end + 1])

    def lines(self) -> list[Piece]:
        """Return the lines with their ends."""
        found, start = [], 0
        for line in self.text.splitlines(keepends=True) if "\r" not in self.text else self.text.split("\n"):
            end = start + len(line)
            found.append(self.cut(start, end))
            start = end
        return found


def join(pieces: Iterable[Piece]) -> Piece:
    """Return pieces of one document as one."""
    texts: list[str] = []
    at: list[int] = []
    end = 0
    for piece in pieces:
        texts.append(piece.text)
        at.extend(piece.at[:-1])
        end = piece.at[-1]
    return Piece("".join(texts), [*at, end])


@dataclass(frozen=True)
class Lines:
    """Where the lines of a text begin."""

    text: str
    starts: list[int] = field(default_factory=list)

    @staticmethod
    def of(text: str) -> Lines:
        """Return the lines of a text."""
        return Lines(text, [0, *(hit.end() for hit in re.finditer("\n", text))])

    def number(self, offset: int) -> int:
        """Return the number of the line, from 1, that `offset` is in."""
        return bisect.bisect_right(self.starts, offset)

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of `offset`, both from 1."""
        line = self.number(offset)
        return line, offset - self.starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return a line by its number, without its end; empty outside the text."""
        if not 1 <= number <= len(self.starts):
            return ""
        end = self.starts[number] - 1 if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end]


_IGNORE = re.compile(r"rlbox:\s*ignore=([\w-]+(?:\s*,\s*[\w-]+)*)")
_ONLY_COMMENT = re.compile(r"\s*(?:#|//|<!--)")


def find_ignored_rules(lines: Lines, number: int) -> frozenset[str]:
    """Return the rules that a comment on the line, or one alone on the line above, switches off for it."""
    found = _IGNORE.findall(lines.line(number))
    above = lines.line(number - 1)
    if _ONLY_COMMENT.match(above):
        found += _IGNORE.findall(above)
    return frozenset(word.strip() for names in found for word in names.split(","))
