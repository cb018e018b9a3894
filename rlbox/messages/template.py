"""One message with places for what varies: `{count} files of {name}`.

What stands in a place is a name or a number, with none of the joints of sentences in it, and stays; in `{count}` it
is a number. The other half says where it is more: `{reason!}` holds a message, which is told as well, `{title?}` a text
of a spec, told when rlbox ships it, `{line*}` what somebody else wrote, whatever it is, `{name^}` only what was marked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

PLACE = re.compile(r"\{(\w+)[!?*^]?\}")
HELD = "\u2067"
"""Stands, with a number, for what was marked."""
JOINT = re.compile(r"(\u2067\d+\u2069|; |: |, |^\(| \(|\)|(?<=[.?!]) | · | – | -> |: ?$| \[|^\[|\]$)")
"""What stands between messages; what somebody else wrote, too, when it was marked."""
_WORD = re.compile(r"[^\W\d_]+")
_WHOLE_WORD = re.compile(r"(?<![\w}])[^\W\d_]+(?![\w{])")
_SHOWN = r"""('[^']*'|"[^"]*"|-?\d[\w.]*|True|False|None|\u2067\d+\u2069)"""
_MARKED = re.compile("\u2067\\d+\u2069")
_QUOTES = "`'\""
_NAME = re.compile(r"(?:\S*[^\s:;,])?|-?\d[\d.,]* \S+(?: \d+ \S+)*(?: \(\S+ GiB\))?")
"""What a place of a message with few letters may hold, or a list of such: one name, an amount, a span."""
_FEW = 10
"""Letters from which on a message is no other's by chance: `{} of {}` is in many sentences."""


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
        return count_letters(PLACE.sub(" ", self.english))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """What reads a text; a value that Python shows is quoted in either way, or a number."""
        parts = PLACE.split(self.english)
        text = "".join("(.*?)" if at % 2 else re.escape(part) for at, part in enumerate(parts))
        return re.compile(text.replace("'(.*?)'", _SHOWN), re.DOTALL)

    @cached_property
    def open(self) -> frozenset[str]:
        """The places in which a message stands."""
        return frozenset(re.findall(r"\{(\w+)!\}", self.other))

    @cached_property
    def of_spec(self) -> frozenset[str]:
        """The places in which a text of a spec stands."""
        return frozenset(re.findall(r"\{(\w+)\?\}", self.other))

    @cached_property
    def others(self) -> frozenset[str]:
        """The places in which stands what is no message of the code, whatever it is."""
        return self.of_spec | frozenset(re.findall(r"\{(\w+)\*\}", self.other))

    @cached_property
    def _held(self) -> frozenset[str]:
        """The places in which stands what was marked, and nothing else."""
        return frozenset(re.findall(r"\{(\w+)\^\}", self.other))

    @cached_property
    def _shown(self) -> frozenset[str]:
        """The places that Python shows in quotes."""
        return frozenset(re.findall(r"'\{(\w+)\}'", self.english))

    def read(self, text: str) -> Mapping[str, str] | None:
        """Return what stands in the places of a text of this message; `None` when it is another's.

        No place ends inside a pair of brackets or quotes that it opened: what is put in is whole.
        """
        hit = self._pattern.fullmatch(text)
        if not hit:
            return None
        found = {
            name: value.strip(_QUOTES) if name in self._shown else value
            for name, value in zip(PLACE.findall(self.english), hit.groups(), strict=True)
        }
        return found if all(self._fits(*one) for one in found.items()) else None

    def _fits(self, name: str, value: str) -> bool:
        if name in self._held:
            return bool(_MARKED.fullmatch(value))
        if name == "count" and not value.startswith(HELD):
            return value[:1].isdigit()
        if value.count("(") != value.count(")") or value.count("`") % 2 or value.endswith((";", ",")):
            return False
        if name in self._shown or (name in self.open | self.others and not self.english.startswith(f"{{{name}}}")):
            return True
        if all(map(_NAME.fullmatch, value.split(", "))):
            return True
        return not JOINT.search(value) and (self.letters >= _FEW or name in self.open | self.others)

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the message in the other language with its places filled."""
        return PLACE.sub(lambda hit: values[hit[1]], self.other)


def count_letters(text: str) -> int:
    """Return how many letters a text has."""
    return sum(map(len, _WORD.findall(text)))
