"""Find in blocks of bytes the lines that may say that something failed: Hyperscan, and RE2 where it is not installed.

Source: both measured on 1 GiB of a healthy log, `benchmarks/RESULTS.md`; literals alone are three times as fast as the
expressions that they come from.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from rlbox.diagnose.read.triggers import triggers
from rlbox.files.act.folders import cache_folder, make_folder, write_atomic
from rlbox.logs.lines import Texts

_NEWLINE = b"\n"
_LONGEST = 64
"""More bytes than a text has that is looked for at the beginning of a line."""


class WholeLines(Texts):
    """Whole lines as they lie in a block of a file, between two places of it; nothing is copied before it is asked for.

    `scanned` are these bytes with the last line feed, `joined` those without.
    """

    def __init__(self, block: bytes, begin: int, end: int, count: int) -> None:
        self.scanned = memoryview(block)[begin:end]
        self.past = self.hidden = ()
        self.hits = None
        self._count = count
        self._block, self._begin, self._end = block, begin, end

    @functools.cached_property
    def joined(self) -> bytes:  # type: ignore[override]
        """The lines joined by line feeds."""
        return self._block[self._begin : self._end - 1]


Offsets = Callable[[memoryview], list[int]]
"""Finds, ascending, the places of a block at which a text that is looked for ends."""


class Scanner:
    """Finds lines that hold a text of `read/triggers.py`, or one of the `anchors` that signatures name."""

    def __init__(self, anchors: Sequence[str] = (), *, engine: str = "") -> None:
        texts = tuple(dict.fromkeys(text.encode() for text in (*triggers(), *anchors)))
        self.engine, self.offsets = _engine(texts, engine)
        self._begins = tuple(text[1:] for text in texts if text.startswith(_NEWLINE))

    def hits(self, block: Texts) -> list[int]:
        """Return, ascending, the indexes of the lines of a block in which something was found."""
        scanned = block.scanned if isinstance(block, WholeLines) else memoryview(block.joined + _NEWLINE)
        places = self.offsets(scanned)
        begun = bytes(scanned[:_LONGEST])
        found: list[int] = [0] if begun.startswith(self._begins) else []
        if not places:
            return found
        data = block.joined + _NEWLINE
        at = index = 0
        for place in places:
            if place <= at and found:
                continue  # on the line that was found last
            index += data.count(_NEWLINE, at, place)
            found.append(index)
            end = data.find(_NEWLINE, place)
            if end < 0:
                break
            at, index = end + 1, index + 1
        return list(dict.fromkeys(found))


def _engine(texts: tuple[bytes, ...], engine: str) -> tuple[str, Offsets]:
    if engine != "re2":
        with contextlib.suppress(ImportError):
            return "hyperscan", _hyperscan(texts)
    return "re2", _re2(texts)


def _re2(texts: tuple[bytes, ...]) -> Offsets:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.max_mem = 128 << 20
    search = re2.compile(b"|".join(re2.escape(text) for text in texts), options).search

    def offsets(data: memoryview) -> list[int]:
        whole, found, at = bytes(data), [], 0
        while hit := search(whole, at):
            found.append(_on_line(data, hit.end() - 1))
            at = whole.find(_NEWLINE, found[-1])  # the line feed is kept: a text may begin with it
            if at < 0:
                break
        return found

    return offsets


def _hyperscan(texts: tuple[bytes, ...]) -> Offsets:
    import hyperscan

    database = _kept(hyperscan, texts)
    places: list[int] = []

    def on_hit(_number: int, _begin: int, end: int, _flags: int, _context: object) -> None:
        places.append(end - 1)

    def offsets(data: memoryview) -> list[int]:
        places.clear()
        if data:
            database.scan(data, match_event_handler=on_hit)
        return sorted(_on_line(data, place) for place in places) if places else []

    return offsets


def _on_line(data: memoryview, place: int) -> int:
    """Return a place on the line that a text ends on: one that ends with a line feed ends on the next line's edge."""
    return place - 1 if data[place] == _NEWLINE[0] else place


@functools.lru_cache(maxsize=4)
def _kept(hyperscan: Any, texts: tuple[bytes, ...]) -> Any:
    """Return the compiled texts, from the cache of this user where they are kept, else compiled and kept there."""
    machine = os.uname().machine.encode()
    digest = hashlib.sha256(b"\0".join((hyperscan.__version__.encode(), machine, *texts))).hexdigest()
    place = cache_folder("diagnose", f"scan-{digest[:24]}")
    with contextlib.suppress(OSError, hyperscan.error):
        database = hyperscan.loadb(place.read_bytes(), mode=hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        return database
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    count = len(texts)
    database.compile(expressions=list(texts), ids=list(range(count)), elements=count, flags=0, literal=True)
    with contextlib.suppress(OSError):
        if make_folder(place.parent):
            write_atomic(place, hyperscan.dumpb(database), mode=0o600)
    return database
