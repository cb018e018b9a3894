"""What stays plain when a text is told in letters that no English has: text that no message knows."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

from rlbox.messages.language import PSEUDO, teller
from rlbox.printable import CLOSES, OPENS, OPENS_SPEC

_MARKED = re.compile(f"[{OPENS}{OPENS_SPEC}][^{OPENS}{OPENS_SPEC}{CLOSES}]*{CLOSES}")
_COMMAND = re.compile(
    r"`[^`]*`|^\t\S+|(?<=\.toml: )[\w.\[\]-]+:|^ +\w+ = \"…\"$"  # what is quoted, a choice of click's, keys of a spec
    r"|(?<![\w/.-])(?:rlbox|vastai|docker|ray|uv|ssh|sudo|apptainer|chmod|export|mkdir|kill|set -a) [^;·()]*"
)
_WORD = re.compile(r"(?<![\w/.=@:~$<{\[-])[A-Za-z][a-z]+(?![\w/=.@>}-])")


@functools.cache
def plain_words(text: str) -> tuple[str, ...]:
    """Return the lines of a text of which words stay plain, those words before each.

    Not counted is what is marked as somebody else's, what stands in the place of a name, and commands.
    """
    return tuple(_plain(text))


_OF_TESTS = frozenset({"mend it", "it broke", "left", "zero"})
"""What a test says in the place of rlbox."""


def _plain(text: str) -> Iterator[str]:
    if "\nOptions:\n" in text:  # help, which is told before it is laid out
        return
    told = teller(PSEUDO)(text)
    while _MARKED.search(told):
        told = _MARKED.sub(" ", told)
    for shown, line in zip(told.split("\n"), text.split("\n"), strict=False):
        words = _WORD.findall(_COMMAND.sub(" ", shown))
        if words and " ".join(words) not in _OF_TESTS:
            yield f"{' '.join(words)} | {line}"


class Overheard:
    """What rlbox says in English, with its marks, and of it what no message knows: `plain`."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def teller(self, language: str) -> Callable[[str], str]:
        """As `language.teller`, which it stands for."""
        return self._note if language == "en" else teller(language)

    def _note(self, text: str) -> str:
        self._texts[text] = None
        return text

    @property
    def plain(self) -> list[str]:
        return [line for text in self._texts for line in plain_words(text)]
