"""Cut the bytes of a growing log into lines as a reader of the terminal would have seen them."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_LIMIT = 64 * 1024
"""Bytes of one line that are looked at; the rest of a longer one is dropped, so that memory stays flat."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RAY_ACTOR = re.compile(r"^\s*\((?=[^()]*\bpid=\d+)[^()]*\)\s?")
_RAY_REPEAT = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a log, colours removed; `number` counts from 1 and line ends at line feeds only."""

    number: int
    text: str

    @property
    def bare(self) -> str:
        """The text without what Ray puts around a worker's line: `(TaskRunner pid=12) ` and `[repeated 3x …]`."""
        text = self.text
        if "[repeated " in text:
            text = _RAY_REPEAT.sub("", text)
        if "pid=" in text:
            text = _RAY_ACTOR.sub("", text)
        return text

    @property
    def times(self) -> int:
        """How many lines this one stands for: Ray prints one of many alike with `[repeated 12x across cluster]`."""
        found = _RAY_REPEAT.search(self.text) if "[repeated " in self.text else None
        return int(found.group(1)) if found else 1


class LineCutter:
    """Turns chunks, cut anywhere, into lines; the same bytes give the same lines however they were cut.

    A progress bar that rewrites its line with carriage returns counts as one line, in its last state that is not
    blank. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        self._current = bytearray()
        self._shown = b""
        self._number = 0

    @property
    def number(self) -> int:
        """How many lines have ended so far."""
        return self._number

    def feed(self, data: bytes) -> list[Line]:
        """Take the next bytes of the log; return the lines that ended in them."""
        parts = data.split(b"\n")
        ended = []
        for part in parts[:-1]:
            self._grow(part)
            ended.append(self._end_line())
        self._grow(parts[-1])
        return ended

    def close(self) -> Line | None:
        """Return the last line when the log ended without a line feed; None when it did not or the line is empty."""
        if self._current or self._shown:
            return self._end_line()
        return None

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

    def _end_line(self) -> Line:
        self._overwrite()
        self._number += 1
        line = Line(number=self._number, text=clean_text(self._shown.decode("utf-8", "replace")))
        self._shown = b""
        return line


def clean_text(text: str) -> str:
    """Return `text` without terminal colour and cursor codes."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def _shows(state: bytearray) -> bool:
    if b"\x1b" in state:
        return bool(clean_text(state.decode("utf-8", "replace")).strip())
    return bool(state.strip())
