"""Which kinds of programs a log is of, by words of its beginning: a failure may mean one thing or another by them."""

from __future__ import annotations

import functools
import re

from rlbox.diagnose.read.words import keys, words

BEGINNING = 1 << 18
"""Bytes of a log that are looked at."""


def spoken_in(data: bytes) -> frozenset[str]:
    """Return the kinds of programs that bytes of a log speak of: `building`, `pip`, `serving`, `training`."""
    return frozenset(kind for kind in keys("spoken") if _pattern(kind).search(data))


def words_of(kinds: frozenset[str]) -> str:
    """Return what was spoken of as one line; a log of training with an engine in it is one of training."""
    told = kinds - {"serving"} if "training" in kinds else kinds
    return f"spoken {' '.join(sorted(told))}"


@functools.cache
def _pattern(kind: str) -> re.Pattern[bytes]:
    return re.compile("|".join(words("spoken", kind)).encode(), re.MULTILINE)
