"""One message with places for what varies: `{count} files of {name}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

PLACE = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[^\W\d_]+")
_QUOTES = "`'\""


@dataclass(frozen=True)
class Template:
    """A message in English and in another language; both have the same places, by name."""

    english: str
    other: str

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that every text of this message has."""
        return frozenset(_WORD.findall(PLACE.sub(" ", self.english)))

    @cached_property
    def letters(self) -> int:
        """How many letters are fixed: of two messages that fit a text, the one with more says more."""
        return sum(map(len, _WORD.findall(PLACE.sub(" ", self.english))))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = PLACE.split(self.english)
        return re.compile("".join("(.*?)" if at % 2 else re.escape(part) for at, part in enumerate(parts)), re.DOTALL)

    @cached_property
    def _told(self) -> Mapping[str, bool]:
        """Place to whether what stands there may be a message: not what is quoted, as a name or a command is."""
        return {hit[1]: self.english[max(hit.start() - 1, 0)] not in _QUOTES for hit in PLACE.finditer(self.english)}

    def read(self, text: str) -> Mapping[str, str] | None:
        """Return what stands in the places of a text of this message; `None` when it is another's.

        No place ends inside a pair of brackets or quotes that it opened: what is put in is whole.
        """
        hit = self._pattern.fullmatch(text)
        if not hit:
            return None
        found = dict(zip(PLACE.findall(self.english), hit.groups(), strict=True))
        return found if all(map(_whole, found.values())) else None

    def fill(self, values: Mapping[str, str], tell: Callable[[str], str]) -> str:
        """Return the message in the other language; `tell` gives the values that may be messages themselves."""
        return PLACE.sub(lambda hit: tell(values[hit[1]]) if self._told[hit[1]] else values[hit[1]], self.other)


def _whole(value: str) -> bool:
    return value.count("(") == value.count(")") and value.count("`") % 2 == 0
