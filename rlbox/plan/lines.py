"""Cut the bytes of a growing log into lines as a reader of the terminal would have seen them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LINE_LIMIT = 64 * 1024
"""Bytes of one line that are looked at; the rest of a longer one is dropped, so that memory stays flat."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RAY_ACTOR = re.compile(r"^\s*\((?=[^()]*\bpid=\d+)[^()]*\)\s?")
_RAY_REPEAT = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a log, colours removed; `number` counts from 1 and lines end at line feeds only."""

    number: int
    text: str

    @property
    def bare(self) -> str:
        """The text without what Ray puts around it."""
        return bare_text(self.text)


class LineCutter:
    """Turns chunks, cut anywhere, into lines; the same bytes give the same lines however they were cut.

    A progress bar that rewrites its line with carriage returns counts as one line, in its last state that is not
    blank. Bytes that are not UTF-8 become U+FFFD. `number` is how many lines have ended so far.
    """

    def __init__(self) -> None:
        self.number = 0
        self._current = bytearray()
        self._shown = b""

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes of the log; return the lines that ended in them, the last one being line `number`."""
        head, found, rest = data.partition(b"\n")
        self._grow(head)
        if not found:
            return []
        lines = [self._end_line()]
        body, found, tail = rest.rpartition(b"\n")
        if found:
            lines += self._cut(body)
        self._grow(tail)
        return lines

    def feed_lines(self, data: bytes) -> Iterator[Line]:
        """Take the next bytes of the log; return the lines that ended in them with their numbers."""
        first = self.number + 1
        texts = self.feed(data)
        return (Line(number=number, text=text) for number, text in enumerate(texts, start=first))

    def close(self) -> list[str]:
        """Return the last line when the log ended without a line feed."""
        return [self._end_line()] if self._current or self._shown else []

    def _cut(self, body: bytes) -> list[str]:
        parts = body.split(b"\n")
        if b"\r" in body or max(map(len, parts)) > LINE_LIMIT:
            lines = []
            for part in parts:
                self._grow(part)
                lines.append(self._end_line())
            return lines
        self.number += len(parts)
        return clean_text(body.decode("utf-8", "replace")).split("\n")

    def _grow(self, part: bytes) -> None:
        if b"\r" in part:
            *past, part = part.split(b"\r")
            for state in past:
                self._append(state)
                self._overwrite()
        self._append(part)

    def _append(self, data: bytes) -> None:
        room = LINE_LIMIT - len(self._current)
        if room > 0:
            self._current += data[:room]

    def _overwrite(self) -> None:
        if _shows(self._current):
            self._shown = bytes(self._current)
        self._current.clear()

    def _end_line(self) -> str:
        seen = bytes(self._current) if _shows(self._current) or not self._shown else self._shown
        self._current.clear()
        self._shown = b""
        self.number += 1
        return clean_text(seen.decode("utf-8", "replace"))


def clean_text(text: str) -> str:
    """Return `text` without terminal colour and cursor codes."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def bare_text(text: str) -> str:
    """Return a line without what Ray puts around a worker's: `(TaskRunner pid=12) ` and `[repeated 3x …]`."""
    if "[repeated " in text:
        text = _RAY_REPEAT.sub("", text)
    return _RAY_ACTOR.sub("", text) if "pid=" in text else text


def repeats(text: str) -> int:
    """Return how many lines this one stands for: Ray prints one of many alike with `[repeated 12x across cluster]`."""
    found = _RAY_REPEAT.search(text) if "[repeated " in text else None
    return int(found.group(1)) if found else 1


def _shows(state: bytearray) -> bool:
    if b"\x1b" in state:
        return bool(clean_text(state.decode("utf-8", "replace")).strip())
    return bool(state.strip())
