"""Cut the bytes of a growing log into lines as a reader of the terminal would have seen them: valid UTF-8, no codes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, modes
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC
    r"|[ -/]+[0-~]|[0-Z\\-~])"
)
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_FORWARD = re.compile(rb"\x1b\[\d{0,4}C")
"""The cursor goes on without a letter, which looks like a blank."""
_COLOURS = 32


def strip_ansi_escapes(text: str) -> str:
    return _ANSI.sub("", text) if "\x1b" in text else text


def _to_clean_utf8(data: bytes) -> bytes:
    """Return bytes without terminal codes, and as valid UTF-8."""
    data = _strip_code_bytes(data)
    return data if data.isascii() else data.decode("utf-8", "replace").encode("utf-8")


def _strip_code_bytes(data: bytes) -> bytes:
    for _ in range(_COLOURS):  # a log has few, and taking out each at once is many times faster than one by one
        if not (found := _COLOUR.search(data)):
            break
        data = data.replace(found.group(), b"")
    return _ANSI_BYTES.sub(b"", _FORWARD.sub(b" ", data)) if b"\x1b" in data else data


def _has_visible_text(state: bytes) -> bool:
    return bool(state.strip()) and bool(_strip_code_bytes(state).strip())


LINE_LIMIT = 64 * 1024
"""Bytes of a line that are read, so that memory stays flat."""
_RAY_ACTOR = re.compile(r"^\s*\((?=[^()]*\bpid=\d+)[^()]*\)\s?")
_RAY_REPEAT = re.compile(
    r"\[repeated (\d{1,6})x across cluster\](?: \(Ray deduplicates logs by default\.[^()]*\))?\s*", re.ASCII
)
"""What Ray puts at the end of a line; with more digits, or more behind it, it is somebody's text."""
_RAY_NAME = re.compile(r"^\s*\(([A-Za-z_][\w.:-]*) pid=\d+[^()]*\)\s")
_RAY_NEXT = re.compile(r"(?<=\S)(?=\([A-Za-z_][\w.:-]* pid=\d+[^()]*\) )")
_RANK = re.compile(r"^\s*(?:\[(?:rank|default) ?\d+\]:?|\[\d+,\d+\]<std(?:err|out)>:?|\d{1,4}: )\s?")
_BAR = re.compile(r"^.{0,200}?%\|[^|]*\|[^\[]*\[[^\]]*\]\s*(?=\S)")


@dataclass(frozen=True, kw_only=True)
class NumberedLine:
    """One line of a log, colours removed; `number` counts from 1 and lines end at line feeds only."""

    number: int
    text: str


class OverwrittenLineState(NamedTuple):
    """A part of a line; the index of the line that has not ended yet is the number of lines of its block."""

    line_index: int
    data: bytes


class LineBlock:
    """Some lines of a log: the first is line `first_number`, and begins at byte `first_byte`.

    `joined` is the lines joined by line feeds, as UTF-8: all who look at a block search it there, and touch only lines
    that hit. `hits`, where somebody has searched for all of them, are the indexes of these. `overwritten_states` are
    earlier states of progress bars.
    """

    def __init__(
        self,
        joined: bytes,
        count: int,
        first_number: int = 1,
        first_byte: int = 0,
        overwritten_states: tuple[OverwrittenLineState, ...] = (),
    ) -> None:
        self.joined = joined
        self.first_number = first_number
        self.first_byte = first_byte
        self.overwritten_states = overwritten_states
        self.hits: Sequence[int] | None = None
        self._count = count

    @functools.cached_property
    def _lines(self) -> list[bytes]:
        return self.joined.split(b"\n") if self._count else []

    @property
    def joined_overwritten_states(self) -> bytes:
        return _to_clean_utf8(b"\n".join(state for _, state in self.overwritten_states))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> str:
        return self._lines[index].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (line.decode("utf-8", "replace") for line in self._lines)


class LineSplitter:
    """Turns chunks, cut anywhere, into lines; the same bytes give the same lines however they were cut.

    A progress bar that rewrites its line with carriage returns counts as one line, in its last state that is not
    blank. Bytes that are not UTF-8 become U+FFFD. `number` is how many lines have ended so far.
    """

    def __init__(self) -> None:
        self.number = 0
        self._offset = self._line_begin = 0
        self._current = b""
        """The state of the unfinished line that is being written."""
        self._shown = b""
        self._visible = False
        self._overwritten: list[tuple[int, bytes]] = []

    @property
    def partial_line(self) -> str:
        shown = self._current if _has_visible_text(self._current) else self._shown
        return _to_clean_utf8(shown).decode("utf-8", "replace")

    def restart_byte_offsets(self) -> None:
        """Count bytes from 0 again: the log was emptied."""
        self._offset = self._line_begin = 0

    def feed(self, data: bytes) -> LineBlock:
        """Return the lines that ended in the next bytes; the last one is line `number`."""
        number, begin, end = self.number, self._line_begin, data.rfind(b"\n")
        body = b""
        if end >= 0:
            body, self._current = self._current + data[:end], b""
            if self._shown or b"\r" in body or _has_long_line(body):
                lines = body.replace(b"\r\n", b"\n").split(b"\n")
                body = b"\n".join(self._settle(line, number + index) for index, line in enumerate(lines))
            self.number += body.count(b"\n") + 1
            self._line_begin = self._offset + end + 1
        self._offset += len(data)
        *states, last = data[end + 1 :].split(b"\r")
        for state in states:
            self._show((self._current + state)[:LINE_LIMIT], self.number)
            self._current = b""
        self._current = (self._current + last)[:LINE_LIMIT]
        return self._make_block(body, number, begin)

    def close(self) -> LineBlock:
        number, begin, self._line_begin = self.number, self._line_begin, self._offset
        if not self._current and not self._shown:
            return LineBlock(b"", 0, number + 1, begin)
        line, self._current = self._settle(self._current, number), b""
        self.number += 1
        return self._make_block(line, number, begin)

    def _make_block(self, body: bytes, number: int, begin: int) -> LineBlock:
        overwritten = tuple(OverwrittenLineState(line - number, state) for line, state in self._overwritten)
        self._overwritten = []
        return LineBlock(_to_clean_utf8(body), self.number - number, number + 1, begin, overwritten)

    def _settle(self, line: bytes, number: int) -> bytes:
        if self._shown or b"\r" in line:
            for state in line.split(b"\r"):
                self._show(state[:LINE_LIMIT], number)
            line, self._shown, self._visible = self._shown, b"", False
        return line[:LINE_LIMIT]

    def _show(self, state: bytes, number: int) -> None:
        """Take the next state of a line; a blank one only moves the cursor."""
        if _has_visible_text(state):
            if self._visible:
                self._overwritten.append((number, self._shown))
            self._shown, self._visible = state, True
        elif state and not self._visible:
            self._shown = state


def _has_long_line(body: bytes) -> bool:
    start = 0
    while len(body) - start > LINE_LIMIT:
        end = body.rfind(b"\n", start, start + LINE_LIMIT + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def strip_ray_prefix_and_repeat(text: str) -> str:
    """Return a line without what Ray adds to a worker's: `(TaskRunner pid=12) `, `[repeated 3x …]`."""
    if found := _ray_repeat(text):
        text = text[: found.start()].rstrip()
    return _RAY_ACTOR.sub("", text) if "pid=" in text else text


def find_ray_actor_or_task_name_or_empty(text: str) -> str:
    """Return the actor or task that the driver's prefix names; empty without one."""
    found = _RAY_NAME.match(text) if "pid=" in text else None
    return found.group(1) if found else ""


def count_omitted_ray_repeats(text: str) -> int:
    """Return how many further lines this one stands for, which ends as Ray's driver ends one of many alike; else 0.

    Only the driver knows: whoever counts them asks for its prefix (`find_ray_actor_or_task_name_or_empty`), and for
    a whole line like it before.
    """
    found = _ray_repeat(text) if find_ray_actor_or_task_name_or_empty(text) else None
    return int(found.group(1)) if found else 0


def _ray_repeat(text: str) -> re.Match[str] | None:
    at = text.rfind("[repeated ")
    return _RAY_REPEAT.fullmatch(text, at) if at >= 0 else None


def list_variants_without_ray_rank_and_bar(line: str) -> list[str]:
    """Return the ways to read a line, itself first: without what Ray, a launcher or a progress bar put before it.

    Where two workers wrote into one line, what stands behind each actor's prefix is a way of its own. A line that was
    torn without such a mark cannot be put together again.
    """
    found = [line]
    if "pid=" in line:
        parts = _RAY_NEXT.split(line)
        found += [strip_ray_prefix_and_repeat(part) for part in parts] if len(parts) > 1 else []
    if "pid=" in line or "[repeated " in line:
        found.append(strip_ray_prefix_and_repeat(line))
    found += [_RANK.sub("", way) for way in found if way[:1] in "[0123456789"]
    if "%|" in line:
        found += [_BAR.sub("", way) for way in found]
    return list(dict.fromkeys(found))
