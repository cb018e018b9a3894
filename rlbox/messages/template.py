"""One message with places for what varies: `{count} files of {name}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

PLACE = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[^\W\d_]+")
_WHOLE_WORD = re.compile(r"(?<![\w}])[^\W\d_]+(?![\w{])")
_SHOWN = r"""('[^']*'|"[^"]*"|-?[\w.]+)"""
_QUOTES = "`'\""


@dataclass(frozen=True)
class Template:
    """A message in English and in another language; both have the same places, by name."""

    english: str
    other: str

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that every text of this message has: those that no place touches."""
        return frozenset(_WHOLE_WORD.findall(PLACE.sub("{}", self.english)))

    @cached_property
    def stems(self) -> frozenset[str]:
        """What stands before a place that may make a plural of it; as `words`, where there are none."""
        return frozenset(re.findall(r"([^\W\d_]+)\{", PLACE.sub("{}", self.english)))

    @cached_property
    def letters(self) -> int:
        """How many letters are fixed: of two messages that fit a text, the one with more says more."""
        return sum(map(len, _WORD.findall(PLACE.sub(" ", self.english))))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """What reads a text; a value that Python shows is quoted in either way, or a number."""
        parts = PLACE.split(self.english)
        text = "".join("(.*?)" if at % 2 else re.escape(part) for at, part in enumerate(parts))
        return re.compile(text.replace("'(.*?)'", _SHOWN), re.DOTALL)

    @cached_property
    def open(self) -> frozenset[str]:
        """The places in which a message may stand: not the quoted ones, where a name or a command is."""
        edged = f" {self.english} "
        around = {hit[1]: (edged[hit.start()], edged[hit.end() + 1]) for hit in PLACE.finditer(self.english)}
        return frozenset(name for name, (one, other) in around.items() if one not in _QUOTES or one != other)

    def read(self, text: str) -> Mapping[str, str] | None:
        """Return what stands in the places of a text of this message; `None` when it is another's.

        No place ends inside a pair of brackets or quotes that it opened: what is put in is whole.
        """
        hit = self._pattern.fullmatch(text)
        if not hit:
            return None
        found = {
            name: value if name in self.open else value.strip(_QUOTES)
            for name, value in zip(PLACE.findall(self.english), hit.groups(), strict=True)
        }
        return found if all(map(_whole, found.values())) else None

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the message in the other language with its places filled."""
        return PLACE.sub(lambda hit: values[hit[1]], self.other)


def _whole(value: str) -> bool:
    return value.count("(") == value.count(")") and value.count("`") % 2 == 0
