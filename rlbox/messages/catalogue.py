"""All messages of one language, and how a text is told by them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from rlbox.messages.layout import cells_told
from rlbox.messages.template import PLACE, Template

_JOINT = re.compile(r"(; |: |, | \(|\)|\. | · | – |\? |: ?$|\.$)")
_WORD = re.compile(r"[^\W\d_]+")
_MARGIN = re.compile(r"(?:\s|#+ |[*>-]+ |── )*")
_FEW = 6
"""Letters of a template below which it is tried on a part without joints alone: `{} and {}` is in many sentences."""
_DEEPEST = 5


class Catalogue:
    """Tells text; what no message fits stays as it is, for it is a name, a path, a command or somebody else's words."""

    def __init__(self, pairs: Mapping[str, str]) -> None:
        self._exact = {english: other for english, other in pairs.items() if not PLACE.search(english)}
        self._by_word = _indexed(Template(*pair) for pair in pairs.items() if PLACE.search(pair[0]))
        self.message = lru_cache(maxsize=4096)(self._message)

    def told(self, text: str) -> str:
        """Return a text of any number of lines in the language of the catalogue."""
        return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        if line.isspace() or not line:
            return line
        margin = _MARGIN.match(line)[0]  # type: ignore[index]
        body = line[len(margin) :]
        whole = self.message(body.rstrip(), 0) if "  " not in body else None
        return margin + (cells_told(body, self._cell) if whole is None else whole)

    def _cell(self, text: str, depth: int = 0) -> str:
        """Tell what stands in a cell or a place: one message, or messages with joints between."""
        body = text.strip()
        if not _WORD.search(body):
            return text
        found = self.message(body, depth)
        return text.replace(body, self._parts(body, depth) if found is None else found, 1)

    def _parts(self, text: str, depth: int) -> str:
        """Tell the longest runs of parts that are messages, from the left; a joint goes with the message before it."""
        parts = _JOINT.split(text)  # texts, with the joints between
        told, at, known = "", 0, False
        while at < len(parts):
            if at % 2:
                told += self._exact.get(parts[at], parts[at]) if known else parts[at]
                at += 1
                continue
            end, found = self._run(parts, at, depth)
            told += parts[at] if found is None else found
            known, at = found is not None, end
        return told

    def _run(self, parts: Sequence[str], at: int, depth: int) -> tuple[int, str | None]:
        """Return where the longest message that begins at a part ends, and the message told; `None` for no message."""
        for end in range(len(parts), at, -1) if parts[at].strip() else ():
            found = self.message("".join(parts[at:end]), depth) if end - at < len(parts) else None
            if found is not None:
                return end, found
        return at + 1, self._fitting(parts[at], depth, few=True)

    def _message(self, text: str, depth: int) -> str | None:
        """Return one whole message; `None` when none fits. A message in a message's place is told as well."""
        if text in self._exact:
            return self._exact[text]
        if depth > _DEEPEST or not _WORD.search(text):
            return None
        return self._fitting(text, depth, few=False)

    def _fitting(self, text: str, depth: int, *, few: bool) -> str | None:
        """Return a text told by the template that fits it and says most; `few` asks for those of few letters."""
        words = set(_WORD.findall(text))
        near = (one for word in words for one in self._by_word.get(word, ()))
        fits = [one for one in near if one.words <= words and few == (one.letters < _FEW)]
        for template in sorted(fits, key=lambda one: -one.letters):
            values = template.read(text)
            if values is not None:
                return template.fill(values, lambda value: self._cell(value, depth + 1))
        return None


def _indexed(templates: Iterable[Template]) -> Mapping[str, list[Template]]:
    """Return the templates by the rarest of their words; one without any would fit whatever others wrote."""
    known = [one for one in templates if one.words]
    often = Counter(word for one in known for word in one.words)
    found = defaultdict(list)
    for one in known:
        found[min(one.words, key=lambda word: (often[word], word))].append(one)
    return found
