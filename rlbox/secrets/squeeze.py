"""Text without what may stand between the characters of a secret: blanks, line ends, quotes, backslashes, colours.

What wraps a text, folds base64, prints a value as source or colours a part of it leaves the secret's own characters in
their order. So a secret is looked for without all that, in a text without all that.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator

_BETWEEN = bytes((*range(33), 127)) + b"\\'\""
_CODE = rb"\[[0-?]*[ -/]*(?:[@-~]|\Z)"
_MARKED = re.compile(
    rb"\x1b(?:" + _CODE + rb"|[()][0-9AB])?"  # colours, cursors, character sets
    rb"|\\(?:[nrt]|(?:u001[bB]|x1[bB]|033)" + _CODE + rb")?"  # the same, and line ends, as source or JSON has them
)
_FILLED = re.compile(_MARKED.pattern + rb"|[" + re.escape(bytes(set(_BETWEEN) - set(b"\x1b\\"))) + rb"]+")


def squeeze(data: bytes) -> bytes:
    """Return `data` without what may stand between the characters of a secret."""
    if b"\x1b" in data or b"\\" in data:
        data = _MARKED.sub(b"", data)
    return data.translate(None, _BETWEEN)


class SqueezedPlaces:
    """Where the bytes of `squeeze(data)` stand in `data`."""

    def __init__(self, data: bytes) -> None:
        rows = list(_kept(data))
        self._data = data
        self._view = [view for view, _ in rows]
        self._at = [at for _, at in rows]
        self._size = self._view[-1] + len(squeeze(data[self._at[-1] :])) if rows else 0

    def begin(self, index: int) -> int:
        """Return where the byte `index` of the squeezed text stands."""
        row = bisect.bisect_right(self._view, index) - 1
        return self._at[row] + index - self._view[row]

    def end(self, index: int) -> int:
        """Return where the squeezed text's first `index` bytes end."""
        return self.begin(index - 1) + 1

    def on_line(self, index: int) -> int:
        """Return how many bytes of the squeezed text, from `index` on, stand on the same line; a large number: all."""
        feed = self._data.find(b"\n", self.begin(index))
        if feed < 0:
            return len(self._data) + 1
        row = bisect.bisect_right(self._at, feed)
        return (self._view[row] if row < len(self._view) else self._size) - index


def _kept(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield, for each piece that is kept, where it begins in the squeezed text and in `data`."""
    view = at = 0
    for filled in _FILLED.finditer(data):
        if filled.start() > at:
            yield view, at
            view += filled.start() - at
        at = filled.end()
    if at < len(data):
        yield view, at
