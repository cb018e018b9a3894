"""Words in a row that a problem and the training data share: whoever was shown a problem is not judged by it.

Source: Brown et al., arXiv 2005.14165, appendix C: thirteen words in a row, punctuation and case aside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlbox.evaluation.problem import EvalProblem

WORDS = 13
_WORD = re.compile(r"\w+")
_SHORTEST = 5
"""Words of a problem that is shorter than `WORDS`: all of it must be there then; one with fewer cannot be told."""


def grams(text: str, count: int = WORDS) -> Iterator[str]:
    """Yield each row of `count` words of a text."""
    words = _WORD.findall(text.lower())
    yield from (" ".join(words[at : at + count]) for at in range(len(words) - count + 1))


class Overlap:
    """Finds the problems of suites in texts; what most problems of a suite say (how they are asked) counts for none."""

    def __init__(self, suites: Mapping[str, Sequence[EvalProblem]]) -> None:
        self._found: dict[str, set[str]] = {suite: set() for suite in suites}
        self._known: dict[str, list[tuple[str, str]]] = {}
        self._untold = {suite: self._take(suite, problems) for suite, problems in suites.items()}
        self._problems = {suite: len(problems) for suite, problems in suites.items()}
        self._counts = sorted({len(gram.split()) for gram in self._known})
        self.rows = 0

    def _take(self, suite: str, problems: Sequence[EvalProblem]) -> list[str]:
        """Remember the rows of words of a suite's problems; return the problems that are too short to be told."""
        made = {problem.id: _of(problem) for problem in problems}
        often = Counter(gram for rows in made.values() for gram in rows)
        common = {gram for gram, count in often.items() if len(made) > 1 and count > max(1, len(made) // 2)}
        for name, rows in made.items():
            for gram in rows - common:
                self._known.setdefault(gram, []).append((suite, name))
        return [name for name, rows in made.items() if not rows - common]

    def read(self, texts: Iterable[str]) -> None:
        """Look through the texts of one row of the training data."""
        self.rows += 1
        for text in texts:
            for count in self._counts:
                for gram in grams(text, count):
                    for suite, name in self._known.get(gram, ()):
                        self._found[suite].add(name)

    def of(self, suite: str) -> dict[str, Any]:
        """Return what was found of a suite, as JSON types."""
        return {
            "words": WORDS,
            "problems": self._problems[suite],
            "found": sorted(self._found[suite]),
            "untold": len(self._untold[suite]),
            "rows": self.rows,
        }


def texts_of(value: Any) -> Iterator[str]:
    """Yield every text of a row, however deep it lies."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts_of(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from texts_of(inner)


def _of(problem: EvalProblem) -> set[str]:
    found = {*grams(problem.ask), *grams(problem.solution)}
    words = _WORD.findall(problem.ask.lower())
    return found if len(words) >= WORDS or len(words) < _SHORTEST else {*found, " ".join(words)}
