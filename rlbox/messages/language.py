"""Which language is spoken, and the one function that tells a text in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.foreign import parse_json

if TYPE_CHECKING:
    from rlbox.messages.catalogue import Messages

Tell = Callable[[str], str]
LANGUAGES = ("en", "zh")
PSEUDO = "pseudo"
"""English with other letters, from the same catalogue: what stays plain in it is text that no message knows."""
_FOLDER = Path(__file__).parent
_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OTHER = "àƀçđêƒĝĥîĵķļɱñôþɋŕšţûṽŵẋýžÀßÇÐÊƑĜĤÎĴĶĻṀÑÔÞɊŔŠŢÛṼŴẊÝŽ"


def language_of(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return what a command line asks for by `--lang`, else RLBOX_LANG, else the locale; `en` for one that is not here.

    Source: setlocale(3), which variable comes first.
    """
    said = next((env[name] for name in ("RLBOX_LANG", "LC_ALL", "LC_MESSAGES", "LANG") if env.get(name)), "")
    for at, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--lang="):
            said = word.partition("=")[2]
        elif word == "--lang" and at + 1 < len(words):
            said = words[at + 1]
    return next((name for name in (*LANGUAGES, PSEUDO) if said.lower().startswith(name)), "en")


def teller(language: str) -> Tell:
    """Return what tells a text in a language; English stays as it is."""
    return str if language == "en" else catalogue(language).told


@lru_cache
def catalogue(language: str) -> Messages:
    """Return the messages of a language."""
    from rlbox.messages.catalogue import Messages

    pairs = messages("zh")
    told = {english: english if other is None else other for english, other in pairs.items() if other != ""}
    if language == PSEUDO:
        told = {english: english if other is None else _pseudo(english) for english, other in pairs.items()}
    return Messages(told)


def messages(language: str) -> dict[str, str | None]:
    """Return every message with its other half: empty when it lacks one, `None` when it is the same in both."""
    files = sorted((_FOLDER / language).glob("*.json"))
    return {english: other for path in files for english, other in parse_json(path.read_text("utf-8")).items()}


def _pseudo(english: str) -> str:
    from rlbox.messages.template import PLACE

    parts, table = PLACE.split(english), str.maketrans(_PLAIN, _OTHER)
    told = "".join(f"{{{part}}}" if at % 2 else part.translate(table) for at, part in enumerate(parts))
    return told.replace("rlbox".translate(table), "rlbox")
