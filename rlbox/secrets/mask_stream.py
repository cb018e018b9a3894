"""Mask secrets in a stream of bytes that is cut anywhere, holding back as little as possible."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from typing import NamedTuple

from rlbox.secrets.squeeze import SqueezedPlaces, squeeze

MASK = "***"
"""What is written in place of a secret."""

SHORTEST = 4
"""Characters that a secret must have to be masked: shorter ones would eat ordinary text."""

_MASK = MASK.encode()
_BLOCK = 1 << 16
_ON_A_LINE = 4
_HELD = 4096
_SPACED = 256
_MEMORY = 64 << 20
# what stands between two bytes that are written in hexadecimal: 68:66, 0x68,0x66, \x68\x66, %68%66, 68-66
_GAP = rb"(?:0x|[-:,;.%_|x\[\](){}])*"


class _Span(NamedTuple):
    """A secret, or its beginning at the end of what came: where it begins, where what is masked of it does, its end."""

    begin: int
    masked: int
    end: int


class MaskPatterns:
    """All that secrets are found by, made once for many streams.

    Parameters
    ----------
    forms
        Ways of writing them; what `squeeze` takes out may stand between any two of their characters.
    values
        Secrets that are found in hexadecimal, too, with what separates its digits.
    """

    def __init__(self, forms: Iterable[str], values: Iterable[str] = ()) -> None:
        import re2  # who has no log and no secret does not pay for it

        found = {squeeze(form.encode("utf-8", "surrogateescape")) for form in forms}
        found |= {form[1:] for form in found if form[:1] in (b"n", b"r", b"t")}  # read as an escape behind a backslash
        self.forms = sorted(form for form in found if len(form) >= SHORTEST)
        texts = [value.encode("utf-8", "surrogateescape").hex() for value in sorted(values)]
        short = [text.encode() for text in texts if 0 < len(text) <= 2 * _SPACED]
        digits = [[text[n : n + 2] for n in range(0, len(text), 2)] for text in short]
        self.longest = max([*map(len, self.forms), *(6 * len(each) for each in digits)], default=0)
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1  # a log holds bytes that are no UTF-8
        options.max_mem = _MEMORY
        options.longest_match = True
        whole = [re.escape(form) for form in self.forms] + [b"(?i:" + _GAP.join(each) + b")" for each in digits]
        self.whole = re2.compile(b"|".join(whole) or rb"[^\x00-\xff]", options)
        begun = [b"(?i:" + _beginnings(each) + b")" for each in digits]
        self._begun = re2.compile(b"(?:" + b"|".join(begun) + rb")\z", options) if begun else None
        self._firsts = {form[:size] for form in self.forms for size in (1, 2)}

    def beginnings(self, view: bytes) -> list[int]:
        """Return, ascending, where the rest of the squeezed text `view` is the beginning of a secret, or a whole one
        that may become a longer one."""
        low = max(len(view) - self.longest + 1, 0)
        found = {n for n in range(low, len(view)) if view[n : n + 2] in self._firsts and self._goes_on(view[n:])}
        place = low
        while self._begun and place < len(view) and (match := self._begun.search(view, place)):
            found.add(match.start())
            place = match.start() + 1
        return sorted(found)

    def _goes_on(self, rest: bytes) -> bool:
        n = bisect.bisect_right(self.forms, rest)
        return n < len(self.forms) and self.forms[n].startswith(rest)


def _beginnings(digits: list[bytes]) -> bytes:
    """Return the expression of all that some bytes in hexadecimal may begin with."""
    pattern = b""
    for number, byte in enumerate(reversed(digits)):
        pattern = byte[:1] + b"(?:" + byte[1:] + (_GAP + b"(?:" + pattern + b"|0)?" if number else b"") + b")?"
    return pattern


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
        """Return what was held back, masked: the log ended before it became a longer secret."""
        return self._settle(b"", ended=True) if self._rest else b""

    def _settle(self, data: bytes, *, ended: bool) -> bytes:
        """Return what is settled of the rest (its first `_shown` bytes were returned before) and `data`."""
        data, place = self._rest + data, self._shown
        parts, end = [], _Span(len(data), len(data), len(data))
        open_ends = [] if ended or not self._patterns else _open_ends(self._patterns, data)
        waiting = next(iter(open_ends), end)
        for span in _found(self._patterns, data) if self._patterns else ():
            if waiting.begin <= span.begin:
                break
            parts += [data[place : max(span.masked, place)], _MASK]
            place = max(place, span.end)
            waiting = next((each for each in open_ends if each.begin >= span.end), end)
        cut = max(waiting.masked, place)
        self._rest, self._shown = data[waiting.begin :], cut - waiting.begin
        return b"".join((*parts, data[place:cut]))


def _found(patterns: MaskPatterns, data: bytes) -> list[_Span]:
    """Return the secrets in `data`, the earliest first."""
    matches = list(patterns.whole.finditer(squeeze(data)))
    places = SqueezedPlaces(data) if matches else None
    return [_span(places, match.start(), match.end()) for match in matches] if places else []


def _open_ends(patterns: MaskPatterns, data: bytes) -> list[_Span]:
    """Return the beginnings of secrets at the end of `data`, the earliest first."""
    skipped = max(len(data) - 2 * patterns.longest - _HELD, 0)
    data = data[skipped:]
    view = squeeze(data)
    starts = patterns.beginnings(view)
    places = SqueezedPlaces(data) if starts else None
    spans = [_span(places, start, len(view), len(data)) for start in starts] if places else []
    return [_Span(*(skipped + at for at in span)) for span in spans]


def _span(places: SqueezedPlaces, start: int, end: int, until: int = -1) -> _Span:
    """Return where the squeezed bytes from `start` to `end` stand; the beginning of a secret goes up to `until`."""
    begin = places.begin(start)
    behind = start + places.on_line(start)
    if behind - start >= _ON_A_LINE or behind > end or (behind == end and until < 0):
        masked = begin
    else:
        masked = places.begin(behind) if behind < end else until
    return _Span(begin, masked, places.end(end) if until < 0 else until)
