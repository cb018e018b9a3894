"""Mask secrets in a stream of bytes that is cut anywhere, holding back as little as possible.

What wraps a text, folds base64, prints a value as source or colours a part of it leaves the secret's own characters in
their order. So a secret is searched for without blanks, quotes, backslashes and colours, in a text without them.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from typing import NamedTuple

_BETWEEN = bytes((*range(33), 127)) + b"\\'\""
_CODE = rb"\[[0-?]*[ -/]*(?:[@-~]|\Z)"
_MARKED = re.compile(
    rb"\x1b(?:" + _CODE + rb"|[()][0-9AB])?"  # colours, cursors, character sets
    rb"|\\(?:[nrt]|(?:u001[bB]|x1[bB]|033)" + _CODE + rb")?"  # the same, and line ends, as source or JSON has them
)
_FILLED = re.compile(_MARKED.pattern + rb"|[" + re.escape(bytes(set(_BETWEEN) - set(b"\x1b\\"))) + rb"]+")


def remove_escapes_quotes_and_whitespace(data: bytes) -> bytes:
    """Return `data` without what may stand between the characters of a secret."""
    if b"\x1b" in data or b"\\" in data:
        data = _MARKED.sub(b"", data)
    return data.translate(None, _BETWEEN)


def _map_offsets(data: bytes) -> list[int]:
    """Return where each byte of `remove_escapes_quotes_and_whitespace(data)` stands in `data`."""
    offsets: list[int] = []
    at = 0
    for filled in _FILLED.finditer(data):
        offsets += range(at, filled.start())
        at = filled.end()
    return [*offsets, *range(at, len(data))]


MASK = "***"
"""What is written in place of a secret."""

MIN_SECRET_LENGTH = 4
"""Characters that a secret must have to be masked: shorter ones would eat ordinary text."""

_MASK = MASK.encode()
_BLOCK = 1 << 16
_ON_A_LINE = 4
_HELD = 4096
_MEMORY = 64 << 20


class _Span(NamedTuple):
    """A secret, or its beginning at the end of what came: where it begins, where what is masked of it does, its end."""

    begin: int
    masked: int
    end: int


class MaskPatterns:
    """All forms in which secrets are written, prepared once for many streams.

    What `remove_escapes_quotes_and_whitespace` takes out may stand between any two characters of a form.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        import re2  # only a run with secrets pays for the import

        squeezed = {remove_escapes_quotes_and_whitespace(form.encode("utf-8", "surrogateescape")) for form in forms}
        # `remove_escapes_quotes_and_whitespace` reads a first n, r or t behind a backslash as the end of an escape.
        squeezed |= {form[1:] for form in squeezed if form[:1] in (b"n", b"r", b"t")}
        self._forms = sorted(form for form in squeezed if len(form) >= MIN_SECRET_LENGTH)
        self.longest = max(map(len, self._forms), default=0)
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1  # a log holds bytes that are no UTF-8
        options.max_mem = _MEMORY
        options.longest_match = True
        self.regex = re2.compile(b"|".join(map(re.escape, self._forms)) or rb"[^\x00-\xff]", options)
        self._prefixes = {form[:size] for form in self._forms for size in (1, 2)}

    def find_incomplete_start_offsets(self, text_without_separators: bytes) -> list[int]:
        first = max(len(text_without_separators) - self.longest + 1, 0)
        return [
            n
            for n in range(first, len(text_without_separators))
            if text_without_separators[n : n + 2] in self._prefixes and self._begins(text_without_separators[n:])
        ]

    def _begins(self, rest: bytes) -> bool:
        n = bisect.bisect_right(self._forms, rest)
        return n < len(self._forms) and self._forms[n].startswith(rest)


class MaskStream:
    """Replaces secrets by `***`; the same bytes give the same result however they were cut.

    At each place the longest secret that begins there is taken, whatever blanks, line ends, quotes, backslashes and
    colours stand within it. Only bytes that may be the beginning of a secret are held back, until the next bytes (or
    `close`) tell. So that no line waits for the next one because of its last letters, those of a secret that is broken
    after three or fewer are not masked; the rest of it is.

    `patterns` is None where there are no secrets.
    """

    def __init__(self, patterns: MaskPatterns | None) -> None:
        self._patterns = patterns
        self._rest = b""
        self._shown = 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those that are settled by now, masked."""
        if self._patterns is None:
            return data
        if len(data) <= _BLOCK:
            return self._settle(data, ended=False)
        view = memoryview(data)
        return b"".join(self._settle(bytes(view[n : n + _BLOCK]), ended=False) for n in range(0, len(data), _BLOCK))

    def close(self) -> bytes:
        return self._settle(b"", ended=True) if self._rest else b""

    def _settle(self, data: bytes, *, ended: bool) -> bytes:
        """Return what is settled of the rest (its first `_shown` bytes were returned before) and `data`."""
        data, place = self._rest + data, self._shown
        parts, end = [], _Span(len(data), len(data), len(data))
        open_ends = [] if ended or not self._patterns else _find_open_ends(self._patterns, data)
        waiting = next(iter(open_ends), end)
        for span in _find_secrets(self._patterns, data) if self._patterns else ():
            if waiting.begin <= span.begin:
                break
            parts += [data[place : max(span.masked, place)], _MASK]
            place = max(place, span.end)
            waiting = next((each for each in open_ends if each.begin >= span.end), end)
        cut = max(waiting.masked, place)
        self._rest, self._shown = data[waiting.begin :], cut - waiting.begin
        return b"".join((*parts, data[place:cut]))


def _find_secrets(patterns: MaskPatterns, data: bytes) -> list[_Span]:
    matches = list(patterns.regex.finditer(remove_escapes_quotes_and_whitespace(data)))
    offsets = _map_offsets(data) if matches else []
    return [_create_span(data, offsets, match.start(), match.end()) for match in matches]


def _find_open_ends(patterns: MaskPatterns, data: bytes) -> list[_Span]:
    skipped = max(len(data) - 2 * patterns.longest - _HELD, 0)
    data = data[skipped:]
    view = remove_escapes_quotes_and_whitespace(data)
    starts = patterns.find_incomplete_start_offsets(view)
    offsets = _map_offsets(data) if starts else []
    spans = (_create_span(data, offsets, start, len(view), is_open=True) for start in starts)
    return [_Span(*(skipped + at for at in span)) for span in spans]


def _create_span(data: bytes, offsets: list[int], start: int, end: int, *, is_open: bool = False) -> _Span:
    """Return where the squeezed bytes from `start` to `end` stand; the beginning of a secret goes up to the end."""
    begin, until = offsets[start], len(data) if is_open else offsets[end - 1] + 1
    line_end = data.find(b"\n", begin)
    next_line = bisect.bisect_left(offsets, line_end) if line_end >= 0 else end + 1
    if next_line - start >= _ON_A_LINE or next_line > end or (next_line == end and not is_open):
        return _Span(begin, begin, until)
    return _Span(begin, offsets[next_line] if next_line < end else until, until)
