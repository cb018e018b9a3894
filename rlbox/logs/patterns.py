"""Search lines, and whole blocks of lines at once, for the patterns of users. Nothing here can backtrack."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rlbox.config.pattern import compile_re2, create_re2_options, tokenize_pattern
from rlbox.logs.lines import LineBlock

_ANCHORS = ("^", "$", r"\A", r"\z")
_GROUP_NAME = re.compile(r"\(\?P?<.*>$")


class PatternSet:
    """Many patterns at once: find the next place in a block that is worth a look, and which patterns fit a line."""

    def __init__(self, texts: Sequence[str]) -> None:
        import re2

        self._texts = texts
        self.loose = tuple(strip_anchors_and_group_names(text) for text in texts)
        self._block = re2.compile(
            "|".join(f"(?:{text})" for text in self.loose).encode(), create_re2_options(capture=False)
        )
        self._set = re2.Set.SearchSet(create_re2_options(capture=False))
        for text in texts:
            self._set.Add(text)
        self._set.Compile()

    def find_next_candidate(self, block: bytes, start: int) -> int | None:
        """Return where in `block`, lines of UTF-8, from `start` on something may fit; None: nowhere.

        Anchors count for nothing here, so that a line is found behind whatever Ray or a progress bar puts before it.
        """
        found = self._block.search(block, start)
        return None if found is None else int(found.start())

    def find_matching_indexes(self, line: str) -> list[int]:
        """Ascending."""
        found = self._set.Match(line)
        if found is None:  # nothing fits, or the set had not enough memory to tell
            return [index for index, text in enumerate(self._texts) if compile_re2(text).search(line)]
        return sorted(found)


@functools.lru_cache(maxsize=128)
def compile_pattern_set(texts: tuple[str, ...]) -> PatternSet:
    return PatternSet(texts)


def strip_anchors_and_group_names(text: str) -> str:
    """Return an expression that fits wherever `text` fits within a longer line: without anchors and group names."""
    return "".join(
        "(?:" if _GROUP_NAME.match(part) else "(?:)" if part in _ANCHORS else part for part in tokenize_pattern(text)
    )


def find_candidate_line_indexes(expressions: tuple[str, ...], block: LineBlock) -> list[int]:
    """Return, ascending, the indexes of lines that one of `expressions` may fit; they must not ask for line ends.

    A block is searched once for all who look at it: each of them then looks only at the lines that hit.
    """
    return list(iterate_matching_line_indexes(_union(expressions), block.joined)) if expressions and block else []


def iterate_matching_line_indexes(re2_pattern: Any, lines: bytes, begin: int = 0) -> Iterator[int]:
    """Yield the indexes of the lines that match, from the line that begins at byte `begin` on."""
    index = lines.count(b"\n", 0, begin)
    while found := re2_pattern.search(lines, begin):
        index += lines.count(b"\n", begin, found.start())
        yield index
        begin, index = lines.find(b"\n", found.start()) + 1, index + 1
        if not begin:
            return


@functools.lru_cache(maxsize=64)
def _union(expressions: tuple[str, ...]) -> Any:
    import re2

    text = "|".join(f"(?:{text})" for text in expressions)
    return re2.compile(f"(?m)(?:{text})".encode(), create_re2_options(capture=False))
