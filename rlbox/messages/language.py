"""Which language is spoken, and the one function that tells a text in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.foreign import parse_json
from rlbox.printable import marked

if TYPE_CHECKING:
    from rlbox.messages.catalogue import Messages

Tell = Callable[[str], str]
LANGUAGES = ("en", "zh")
PSEUDO = "pseudo"
"""English with other letters, from the same catalogue: what stays plain in it is text that no message knows."""
_FOLDER = Path(__file__).parent
_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASCII = re.compile(r"[A-Za-z](?:[\w-]*[A-Za-z0-9])?", re.ASCII)
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

    halves = (_halves(language, messages("zh", rooms)) for rooms in ("*", "table-*"))
    return Messages(*halves, marking=language == PSEUDO)


def _halves(language: str, pairs: Mapping[str, str | None]) -> dict[str, str]:
    told = {english: english if other is None else other for english, other in pairs.items() if other != ""}
    if language == PSEUDO:
        same = {english: marked(english) for english, other in told.items() if other == english}
        told = {english: _pseudo(english, other) for english, other in told.items()} | same
    return told


def messages(language: str, rooms: str = "*") -> dict[str, str | None]:
    """Return every message of rooms with its other half: empty when it lacks one, `None` when both are the same."""
    files = sorted((_FOLDER / language).glob(f"{rooms}.json"))
    return {english: other for path in files for english, other in parse_json(path.read_text("utf-8")).items()}


def _pseudo(english: str, other: str) -> str:
    from rlbox.messages.template import PLACE

    places = {hit[1]: hit[0] for hit in PLACE.finditer(other)}
    parts, table = PLACE.split(english), str.maketrans(_PLAIN, _OTHER)
    kept = set(_ASCII.findall(PLACE.sub(" ", other)))  # commands, options, names
    parts[::2] = [
        _ASCII.sub(lambda hit: marked(hit[0]) if hit[0] in kept else hit[0].translate(table), part)
        for part in parts[::2]
    ]
    parts[1::2] = [places.get(name, f"{{{name}}}") for name in parts[1::2]]
    return "".join(parts)
