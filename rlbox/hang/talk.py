"""Whether a log still says anything new, or only repeats itself while the work stands still."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CLOCK = re.compile(r"\d{1,4}[-/]\d{1,2}(?:[-/]\d{1,4})?|\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?|pid=\d+|0x[0-9a-f]+")
_BAR_END = re.compile(r"\[[^\]]*\]?\s*$")  # elapsed<left, rate: what changes while a bar stands still
_SPINNER = re.compile(r"[^\x20-\x7e]+|^[|/\\-] ")
_CHARS = 160
_MOST = 4096


class Talk:
    """Remembers the kinds of lines that a log holds: their texts without numbers, and the numbers they last had."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[str, ...]] = {}
        self._bar = ""

    def learn(self, texts: Iterable[str]) -> tuple[bool, bool]:
        """Take lines; return whether one is of a kind never seen, and whether one says something else than before.

        Clocks, addresses and process numbers say nothing. A line with a number that changed says something else.
        """
        new = changed = False
        for text in texts:
            bare = _CLOCK.sub("", text[:_CHARS])
            kind, numbers = _NUMBER.sub("#", bare), tuple(_NUMBER.findall(bare))
            before = self._kinds.get(kind)
            new |= before is None
            changed |= before != numbers
            if before is not None or len(self._kinds) < _MOST:
                self._kinds[kind] = numbers
        return new, changed

    def moved(self, unfinished: str) -> bool:
        """Whether a line that is being rewritten (a progress bar) went on: neither its clock nor a spinner counts."""
        bar = _SPINNER.sub("", _BAR_END.sub("", unfinished[-_CHARS:]))
        bar, before = _CLOCK.sub("", bar), self._bar
        self._bar = bar
        return bar != before
