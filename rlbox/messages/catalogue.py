"""All messages of one language, and how a text is told by them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from rlbox.messages.layout import cells_told
from rlbox.messages.template import PLACE, Template

_JOINT = re.compile(r"(; |: |, |^\(| \(|\)|(?<=[.?!]) | · | – | -> |: ?$| \[|\]$)")
_WORD = re.compile(r"[^\W\d_]+")
_PLAIN = re.compile(r"(?<!\S)[a-z]{2,}(?!\S)")
_MARGIN = re.compile(r"(?:\s|#+ |[*>✓✗=…-]+ |── )*")
_COMMAND = re.compile(r"rlbox [a-z]")
_FEWEST, _FEW = 5, 10
"""Letters of a message below which it has no joints, and what stands in its places must be one name, or
messages themselves: `{} of {}` is in many sentences."""
_WIDEST = 24
"""Parts between joints that one message has at most."""
_DEEPEST = 5
_COVER = 20
"""What a letter counts by itself, beside those of its message: few long messages are meant, but no word is left."""


class Messages:
    """Tells text; what no message fits stays as it is, for it is a name, a path, a command or somebody else's words."""

    def __init__(self, pairs: Mapping[str, str]) -> None:
        self._exact = {english: other for english, other in pairs.items() if not PLACE.search(english)}
        self._by_word = _indexed(Template(*pair) for pair in pairs.items() if PLACE.search(pair[0]))
        self._message = lru_cache(maxsize=4096)(self._find)

    def told(self, text: str) -> str:
        """Return a text of any number of lines in the language of the catalogue."""
        return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        return cells_told(line, lambda cell: self._cell(cell, 0).text)

    def _cell(self, text: str, depth: int) -> _Told:
        """Tell what stands in a cell or a place: messages with joints between, rather long ones than many."""
        body = text[_MARGIN.match(text).end() :].rstrip()  # type: ignore[union-attr]
        if depth > _DEEPEST or not _WORD.search(body):
            return _Told(text)
        if body in self._exact:
            return _of(text.replace(body, self._exact[body], 1), len(body))
        parts = _JOINT.split(body)  # texts, with the joints between
        best = [_Told("")]  # of the parts up to each, from none on
        for end in range(1, len(parts) + 1):
            found = (self._upto(parts, begin, end, depth, best[begin]) for begin in range(max(0, end - _WIDEST), end))
            best.append(max(found, key=lambda told: told.score))
        return best[-1]._replace(text=text.replace(body, _paired(best[-1].text), 1))

    def _upto(self, parts: Sequence[str], begin: int, end: int, depth: int, before: _Told) -> _Told:
        """Return what is told of the parts up to `end`, the last message of which begins at `begin`."""
        text = "".join(parts[begin:end])
        joint = begin % 2 == 1
        found = None if joint or not text.strip() else self._message(text, depth)
        if end == begin + 1 and not joint:
            found = found or self._beginning(text)
        if found:
            score = before.score + found.score
            return _Told(before.text + found.text, before.letters + found.letters, score, known=True)
        if joint and before.known:  # it is of the message before it
            text = self._exact.get(text, text)
        return before._replace(text=before.text + text, score=before.score - (end > begin + 1), known=False)

    def _beginning(self, text: str) -> _Told | None:
        """Return a part told of which two or more words at one end are a message: what stands beside them is a name."""
        words = text.split(" ")
        for count in range(len(words) - 1, 1, -1):
            first, last = " ".join(words[:count]), " ".join(words[-count:])
            if first in self._exact:
                return _of(" ".join([self._exact[first], *words[count:]]), len(first))
            if last in self._exact:
                return _of(" ".join([*words[:-count], self._exact[last]]), len(last))
        return None

    def _find(self, text: str, depth: int) -> _Told | None:
        """Return one whole message told; `None` when none fits. A message in a message's place is told as well."""
        if text in self._exact:
            return _of(self._exact[text], len(text))
        words = set(_WORD.findall(text))
        near = (one for word in words for one in self._by_word.get(word, ()) if one.words <= words)
        told = (self._filled(one, text, depth) for one in near)
        if best := max(filter(None, told), key=lambda one: one.score, default=None):
            return best
        if text.endswith(".") and (found := self._message(text[:-1], depth)):
            return found._replace(text=found.text + self._exact.get(".", "."))
        return None

    def _filled(self, template: Template, text: str, depth: int) -> _Told | None:
        """Return a message told; `None` where it has few letters, and holds a sentence that no message knows."""
        values = None if template.letters < _FEWEST and _JOINT.search(text) else template.read(text)
        if values is None:
            return None
        told = {name: self._cell(value, depth + 1) for name, value in values.items() if name in template.open}
        strange = any(not one.letters and len(_PLAIN.findall(values[name])) > 1 for name, one in told.items())
        if template.letters < _FEW and (strange or _COMMAND.match(text)):
            return None
        shown = {**values, **{name: one.text for name, one in told.items()}}
        made = _of(template.fill(shown), template.letters)
        parts = told.values()
        return made._replace(
            letters=sum((one.letters for one in parts), made.letters),
            score=sum((one.score for one in parts), made.score),
        )


class _Told(NamedTuple):
    """A text, told: how many of its letters are of messages, how well they fit, and whether its end is one."""

    text: str
    letters: int = 0
    score: int = 0
    known: bool = False


def _of(text: str, letters: int) -> _Told:
    """Return a message told, of which so many letters are its own: one of many fits better than many of few."""
    return _Told(text, letters, letters * (letters + _COVER))


def _paired(text: str) -> str:
    """Return a text whose brackets close as they open: one of both kinds becomes the plain one."""
    opened, signs = [], list(text)
    for at, sign in enumerate(signs):
        if sign in "(（":
            opened.append(at)
        elif sign in ")）" and opened:
            begin = opened.pop()
            if (signs[begin] == "（") != (sign == "）"):
                signs[begin], signs[at] = "(", ")"
        elif sign == "）":
            signs[at] = ")"
    return "".join(signs)


def _indexed(templates: Iterable[Template]) -> Mapping[str, list[Template]]:
    """Return the templates by the rarest of their words; one without any would fit whatever others wrote."""
    known = [one for one in templates if one.words or one.stems]
    often = Counter(word for one in known for word in one.words)
    found = defaultdict(list)
    for one in known:
        rarest = min(one.words, key=lambda word: (often[word], word), default="")
        for word in [rarest] if rarest else [*one.stems, *(f"{stem}s" for stem in one.stems)]:
            found[word].append(one)
    return found
