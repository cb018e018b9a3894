"""Search a block of a log once for all who look at it: each of them then looks only at the lines that hit."""

from __future__ import annotations

import functools
from typing import Any

from rlbox.logs.lines import Texts
from rlbox.spec.pattern import re2_options


def find_hits(expressions: tuple[str, ...], texts: Texts) -> list[int]:
    """Return, ascending, the indexes of lines that one of `expressions` may fit; they must not ask for line ends."""
    if not expressions or not texts:
        return []
    block, search = texts.joined, _union(expressions).search
    hits, at, index = [], 0, 0
    while found := search(block, at):
        start = found.start()
        index += block.count(b"\n", at, start)
        hits.append(index)
        at, index = block.find(b"\n", start) + 1, index + 1
        if not at:
            break
    return hits


@functools.lru_cache(maxsize=64)
def _union(expressions: tuple[str, ...]) -> Any:
    import re2

    text = "|".join(f"(?:{text})" for text in expressions)
    return re2.compile(f"(?m)(?:{text})".encode(), re2_options(capture=False))
