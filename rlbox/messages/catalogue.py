"""All messages of one language, and how a text is told by them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from rlbox.messages.layout import cells_told
from rlbox.messages.template import HELD, JOINT, PLACE, Template, count_letters
from rlbox.printable import CLOSES, OPENS, OPENS_SPEC, marked

_WORD = re.compile(r"[^\W\d_]+")
_MARGIN = re.compile(r"(?:\s|#+ |@@ |[*>✓✗=…-]+ |── )*")
_OTHERS = re.compile(f"([{OPENS}{OPENS_SPEC}])([^{OPENS}{OPENS_SPEC}{CLOSES}]*)(?:{CLOSES}|$)")
_QUOTED = re.compile(rf"^( {{2,}}\| )([^{OPENS}{OPENS_SPEC}{CLOSES}\n]+)$", re.MULTILINE)
"""A line that quotes what a program or a log said."""
_KEPT = re.compile(f"{HELD}(\\d+){CLOSES}")
_WIDEST = 40
"""Parts between joints that one message has at most."""
_DEEPEST = 5
_WIDE = tuple("：；，。？！）")
"""Signs with the room behind them that a blank is elsewhere."""
_COVER = 20
"""What a letter counts by itself, beside those of its message: few long messages are meant, but no word is left."""


class Messages:
    """Tells text; what no message fits stays as it is, for it is a name, a path, a command or somebody else's words."""

    def __init__(
        self, pairs: Mapping[str, str], shipped: Mapping[str, str] | None = None, *, marking: bool = False
    ) -> None:
        """Take the pairs, of which `shipped` are texts of the specs that rlbox ships.

        `marking`: what is not told since it is others' (marked, or a name in a place) is marked in what is told, too.
        """
        self._marked: Callable[[str], str] = marked if marking else str
        self._exact = {english: other for english, other in pairs.items() if not PLACE.search(english)}
        self._by_word = _indexed(Template(*pair) for pair in pairs.items() if PLACE.search(pair[0]))
        self._message = lru_cache(maxsize=4096)(self._find)
        self._shipped = Messages(shipped) if shipped else None

    def told(self, text: str) -> str:
        """Return a text of any number of lines in the language of the catalogue; what is marked stays as it is.

        A text of a spec (`of_spec`) is told when it is one that rlbox ships, as a whole.
        """
        kept: list[tuple[str, str]] = []

        def keep(hit: re.Match[str]) -> str:
            kept.append((hit[2], self._of_spec(hit[2]) if hit[1] == OPENS_SPEC else hit[2]))
            return f"{HELD}{len(kept) - 1}{CLOSES}"

        def before(cell: str) -> str:
            return _KEPT.sub(lambda hit: kept[int(hit[1])][0], cell)

        def tell(cell: str) -> str:
            return _KEPT.sub(lambda hit: self._marked(kept[int(hit[1])][1]), self._cell(cell, 0).text)

        return cells_told(_OTHERS.sub(keep, _QUOTED.sub(rf"\1{OPENS}\2{CLOSES}", text.replace(HELD, ""))), tell, before)

    def _of_spec(self, text: str) -> str:
        return "\n".join(map(self._shipped_line, text.split("\n")))

    def _shipped_line(self, line: str) -> str:
        for body in (line.strip(), line.strip()[1:-1]):  # also between brackets
            if self._shipped and (told := self._shipped._message(body, 0)):
                return line.replace(body, told.text)
        return line

    def _cell(self, text: str, depth: int) -> _Told:
        """Tell what stands in a cell or a place: messages with joints between, rather long ones than many."""
        body = text[_MARGIN.match(text).end() :].rstrip()  # type: ignore[union-attr]
        if depth > _DEEPEST or not _WORD.search(body):
            return _Told(text)
        if body in self._exact:
            return _of(text.replace(body, self._exact[body], 1), len(body))
        parts = JOINT.split(body)  # texts, with the joints between
        best = [_Told("", known=True)]  # of the parts up to each, from none on
        for end in range(1, len(parts) + 1):
            found = (self._upto(parts, begin, end, depth, best[begin]) for begin in range(max(0, end - _WIDEST), end))
            best.append(max(found, key=lambda told: told.score))
        return best[-1]._replace(text=text.replace(body, _paired(best[-1].text), 1))

    def _upto(self, parts: Sequence[str], begin: int, end: int, depth: int, before: _Told) -> _Told:
        """Return what is told of the parts up to `end`, the last message of which begins at `begin`."""
        text = "".join(parts[begin:end])
        joint, body = begin % 2 == 1, text.strip()
        found = None if joint or not _WORD.search(body) else self._message(body, depth)
        if found:
            score, told = before.score + found.score, text.replace(body, found.text, 1)
            told = told.rstrip() if told.rstrip().endswith(_WIDE) else told
            return _Told(before.text + told, before.letters + found.letters, score, known=True)
        if joint and before.known:  # it is of the message before it
            text = "" if text == " " and before.text.endswith(_WIDE) else self._exact.get(text, text)
        known = text.startswith(HELD) or (before.known and not text)
        return before._replace(text=before.text + text, score=before.score - (end > begin + 1), known=known)

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
        """Return a message told, with the messages that stand in its places."""
        values = template.read(text)
        if values is None:
            return None
        told = {name: self._cell(values[name], depth + 1) for name in template.open}
        shown = {name: self._marked(value) for name, value in values.items()}
        shown |= {name: self._of_spec(values[name]) for name in template.of_spec}
        shown |= {name: one.text for name, one in told.items()}
        own = template.letters + sum(count_letters(values[name]) for name in template.others)
        made = _of(template.fill(shown), own)
        return made._replace(
            letters=sum((one.letters for one in told.values()), made.letters),
            score=sum((one.score for one in told.values()), made.score),
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
