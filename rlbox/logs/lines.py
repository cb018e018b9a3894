"""Cut the bytes of a growing log into lines as a reader of the terminal would have seen them: valid UTF-8, no codes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, modes
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC
    r"|[ -/]+[0-~]|[0-Z\\-~])"
)
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_FORWARD = re.compile(rb"\x1b\[\d{0,4}C")
"""The cursor goes on without a letter, which looks like a blank."""
_COLOUR_BYTES = 19
_COLOURS = 32
_WORDS = bytes(range(128)).replace(b" ", b"").replace(b"\n", b"")
"""What is left out of a test for UTF-8, which takes a quarter of the time then; blanks keep what is torn apart."""


def strip_terminal_codes(text: str) -> str:
    return _ANSI.sub("", text) if "\x1b" in text else text


def _to_clean_utf8(data: bytes) -> bytes:
    """Return bytes without terminal codes, and as valid UTF-8."""
    if b"\x1b" in data:
        data = _without_codes(data)
    if data.isascii():
        return data
    try:
        data.translate(None, _WORDS).decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode("utf-8")
    return data


def _without_codes(data: bytes) -> bytes:
    """Return bytes without terminal codes: colours first, of which a log has few, so that each is taken out at once."""
    at = 0
    for _ in range(_COLOURS):
        found = _COLOUR.search(data, at)
        if not found:
            break
        data, at = data.replace(found.group(), b""), max(0, found.start() - _COLOUR_BYTES)
        if b"\x1b" not in data:
            return data
    else:
        while (left := _COLOUR.sub(b"", data)) != data:
            data = left
    return _ANSI_BYTES.sub(b"", _FORWARD.sub(b" ", data)) if b"\x1b" in data else data


def _has_visible_text(state: bytes) -> bool:
    if not state or state.isspace():
        return False
    return b"\x1b" not in state or bool(_without_codes(state).strip())


LINE_LIMIT = 64 * 1024
"""Bytes of a line that are read, so that memory stays flat."""
_FEED = ord("\n")
_SAMPLE = 1 << 14
_MANY = 8
"""Carriage returns in the first 16 KiB of a block that make it worth a pass of its own to take the idle ones out."""

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
class Line:
    """One line of a log, colours removed; `number` counts from 1 and lines end at line feeds only."""

    number: int
    text: str


class OverwrittenLineState(NamedTuple):
    """A part of a line; the index of the line that has not ended yet is the number of lines of its block."""

    line_index: int
    data: bytes


class LineBlock(Sequence[str]):
    """The lines of one block; a line becomes text only when it is asked for.

    `joined` is the lines joined by line feeds, as UTF-8: all who look at a block search it there, and touch only lines
    that hit. `hits`, where somebody has searched for all of them, are the indexes of these. `overwritten_states` are
    earlier states of progress bars.
    """

    def __init__(self, joined: bytes, count: int, overwritten: tuple[OverwrittenLineState, ...] = ()) -> None:
        self.joined = joined
        self.overwritten_states = overwritten
        self.hits: Sequence[int] | None = None
        self._count = count

    @functools.cached_property
    def _rows(self) -> list[bytes]:
        return self.joined.split(b"\n") if self._count else []

    @property
    def joined_overwritten_states(self) -> bytes:
        return _to_clean_utf8(b"\n".join(state for _, state in self.overwritten_states))

    @property
    def last_line(self) -> str:
        """The last line; cheaper than by its index."""
        return self.joined[self.joined.rfind(b"\n") + 1 :].decode("utf-8", "replace")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [row.decode("utf-8", "replace") for row in self._rows[index]]
        if self._count and index in (-1, self._count - 1):
            return self.last_line
        return self._rows[index].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.joined.decode("utf-8", "replace").split("\n") if self._count else ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def make_line_block(texts: Sequence[str]) -> LineBlock:
    if isinstance(texts, LineBlock):
        return texts
    return LineBlock("\n".join(texts).encode("utf-8", "replace"), len(texts))


class LineSplitter:
    """Turns chunks, cut anywhere, into lines; the same bytes give the same lines however they were cut.

    A progress bar that rewrites its line with carriage returns counts as one line, in its last state that is not
    blank. Bytes that are not UTF-8 become U+FFFD. `number` is how many lines have ended so far.
    """

    def __init__(self) -> None:
        self.number = 0
        self._current = bytearray()
        self._shown = b""
        self._visible = False
        self._past: list[tuple[int, bytes]] = []

    @property
    def partial_line(self) -> str:
        """The line that has not ended yet, as a terminal shows it now."""
        shown = bytes(self._current) if _has_visible_text(bytes(self._current)) else self._shown
        return _to_clean_utf8(shown).decode("utf-8", "replace")

    def feed(self, data: bytes) -> LineBlock:
        """Return the lines that ended in the next bytes; the last one is line `number`."""
        first, end = self.number, data.rfind(b"\n")
        if end < 0:
            self._grow(data)
            return LineBlock(b"", 0, self._take_past(first))
        text = (
            self._cut(b"".join((self._current, memoryview(data)[:end])))
            if not self._shown
            else self._finish(data[:end])
        )
        self._current.clear()
        self._grow(data[end + 1 :])
        return LineBlock(text, self.number - first, self._take_past(first))

    def close(self) -> LineBlock:
        """Return the last line of a log that ended without a line feed."""
        if not self._current and not self._shown:
            return LineBlock(b"", 0)
        first = self.number
        text = self._end_line()
        return LineBlock(text, 1, self._take_past(first))

    def _finish(self, body: bytes) -> bytes:
        head, found, rest = body.partition(b"\n")
        self._grow(head)
        text = self._end_line()
        return b"%s\n%s" % (text, self._cut(rest)) if found else text

    def _cut(self, body: bytes) -> bytes:
        """Return complete lines as shown; only rewritten and too long ones are looked at singly."""
        if body.count(b"\r", 0, _SAMPLE) > _MANY:  # at the ends of lines, mostly, where they change nothing
            body = body.replace(b"\r\n", b"\n").removesuffix(b"\r").replace(b"\n\r", b"\n").removeprefix(b"\r")
        first = self.number
        if _has_long_line(body):
            body = b"\n".join(self._last_state(line, first + n) for n, line in enumerate(body.split(b"\n")))
        elif b"\r" in body:
            body = b"".join(self._settle(body))
        self.number = first + body.count(b"\n") + 1
        return _to_clean_utf8(body)

    def _settle(self, body: bytes) -> Iterator[bytes]:
        at = counted = 0
        number = self.number
        while (found := body.find(b"\r", at)) >= 0:
            if not found or body[found - 1] == _FEED or body[found + 1 : found + 2] in (b"\n", b""):
                yield body[at:found]  # at the end of a line it changes nothing
                at = found + 1
                continue
            begin = body.rfind(b"\n", at, found) + 1 or at
            end = body.find(b"\n", found)
            end = len(body) if end < 0 else end
            number += body.count(b"\n", counted, begin)
            counted = begin
            yield body[at:begin]
            yield self._last_state(body[begin:end], number)
            at = end
        yield body[at:]

    def _last_state(self, line: bytes, number: int) -> bytes:
        if b"\r" in line:
            self.number = number
            for state in line.split(b"\r"):
                self._show(state[:LINE_LIMIT])
            line, self._shown, self._visible = self._shown, b"", False
        return line[:LINE_LIMIT]

    def _grow(self, part: bytes) -> None:
        if b"\r" in part:
            *past, part = part.split(b"\r")
            for state in past:
                self._current += state[: LINE_LIMIT - len(self._current)]
                self._show(bytes(self._current))
                self._current.clear()
        self._current += part[: LINE_LIMIT - len(self._current)]

    def _show(self, state: bytes) -> None:
        """Take the next state of a line; a blank one only moves the cursor."""
        if _has_visible_text(state):
            if self._visible:
                self._past.append((self.number, self._shown))
            self._shown, self._visible = state, True
        elif state and not self._visible:
            self._shown = state

    def _end_line(self) -> bytes:
        self._show(bytes(self._current))
        seen, self._shown, self._visible = self._shown, b"", False
        self._current.clear()
        self.number += 1
        return _to_clean_utf8(seen)

    def _take_past(self, first: int) -> tuple[OverwrittenLineState, ...]:
        past, self._past = self._past, []
        return tuple(OverwrittenLineState(number - first, state) for number, state in past)


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


def find_ray_actor(text: str) -> str:
    """Return the actor or task that the driver's prefix names; empty without one."""
    found = _RAY_NAME.match(text) if "pid=" in text else None
    return found.group(1) if found else ""


def count_omitted_ray_repeats(text: str) -> int:
    """Return how many further lines this one stands for, which ends as Ray's driver ends one of many alike; else 0.

    Only the driver knows: whoever counts them asks for its prefix (`find_ray_actor`), and for a whole line like it
    before.
    """
    found = _ray_repeat(text) if find_ray_actor(text) else None
    return int(found.group(1)) if found else 0


def _ray_repeat(text: str) -> re.Match[str] | None:
    at = text.rfind("[repeated ")
    return _RAY_REPEAT.fullmatch(text, at) if at >= 0 else None


def list_prefix_stripped_variants(line: str) -> list[str]:
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
