"""Mask secrets in a stream of bytes that is cut anywhere, holding back as little as possible."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlbox.secrets.credentials import compile_bytes
from rlbox.secrets.masks import MASK

_MASK = MASK.encode()


class MaskStream:
    """Replaces secrets by `***`; the same bytes give the same result however they were cut.

    At each place the longest secret that begins there is taken. Only bytes that may be the beginning of a secret are
    held back, until the next bytes (or `close`) tell: never a line feed, unless a secret holds one.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        values = {form.encode("utf-8", "surrogateescape") for form in forms} - {b""}
        self._values = sorted(values, key=len, reverse=True)
        self._longest = len(self._values[0]) if values else 0
        firsts = bytes({value[0] for value in values})
        self._first = re.compile(b"[" + re.escape(firsts) + b"]" if firsts else b"(?!)")
        self._pattern = compile_bytes(b"|".join(map(re.escape, self._values))) if values else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those that are settled by now, masked."""
        if self._pattern is None:
            return data
        data = self._held + data
        starts = self._starts(data)
        parts, place = [], 0
        while True:
            cut = next((start for start in starts if start >= place), len(data))
            match = self._pattern.search(data, place)
            if match is None or match.start() >= cut:
                break
            parts += [data[place : match.start()], _MASK]
            place = match.end()
        self._held = data[cut:]
        return b"".join((*parts, data[place:cut])) if parts else data[:cut]

    def close(self) -> bytes:
        """Return what was held back, masked: the log ended before it became a longer secret."""
        held, self._held = self._held, b""
        return self._pattern.sub(_MASK, held) if self._pattern else held

    def _starts(self, data: bytes) -> list[int]:
        """Return, ascending, where the rest of `data` is the beginning of a secret."""
        begin = max(len(data) - self._longest + 1, 0)
        found = (match.start() for match in self._first.finditer(data, begin))
        rests = ((start, data[start:]) for start in found)
        return [start for start, rest in rests if any(v.startswith(rest) and v != rest for v in self._values)]
