"""Whether a secret can be told from ordinary text: what cannot would be masked wherever a log says the same word."""

from __future__ import annotations

import re

from rlbox.i18n import _

SHORTEST_SECRET = 8
"""Characters that a secret must have."""

_ENOUGH = 33.0
_FEWEST = 5
_ABBREVIATION = 5
_VOWELS = frozenset("aeiouyAEIOUY")
_RUN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_]|\d+|[\W_]")
_PLAIN_SIGNS = frozenset("-_./: ")
_NUMBER = re.compile(r"[-+]?[\d.,:_ /eE-]+")
_PATH = re.compile(r"(?:~|\.{1,2})?/.*")
_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*/?")

# Bits that a piece of a value is worth to whoever knows words, names and years: log2 of the characters that may stand
# there (26 letters, 52 for one alone, 10 digits, 32 signs), and of some thousand words.
_LETTER, _LONE, _DIGIT, _SIGN, _PLAIN_SIGN, _WORD, _FOREIGN = 4.7, 5.7, 3.3, 5.0, 1.0, 10.0, 6.0
_MOST_DIGITS, _LONG_WORD = 4, 12
# names change between letters and digits twice at most (Qwen2.5-7B)
_SWITCH = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")
_USUAL_SWITCHES, _SWITCHED = 2, 5.0


def weakness(value: str) -> str:
    """Return why a value is too weak for a secret, in words that go on after "it is"; empty when it is strong enough.

    What services make is strong: digits and letters in disorder. So is a sentence of four words.
    """
    value = value.strip()
    if len(value) < SHORTEST_SECRET:
        return _("shorter than {shortest_secret} characters").format(shortest_secret=SHORTEST_SECRET)
    if _NUMBER.fullmatch(value):
        return _("a number")
    if _HOST.fullmatch(value):
        return _("an address")
    if len(set(value)) < _FEWEST:
        return _("the same few characters again and again")
    if _PATH.fullmatch(value) and all(_bits(name) < _ENOUGH for name in value.split("/")):
        return _("a path")
    return "" if _bits(value) >= _ENOUGH else _("a common word or name, or like one")


def _bits(value: str) -> float:
    """Return how hard a value is to guess, at least."""
    switches = len(_SWITCH.findall(value))
    return sum(_worth(run) for run in _RUN.findall(value)) + _SWITCHED * max(switches - _USUAL_SWITCHES, 0)


def _worth(run: str) -> float:
    if run.isdigit():
        return _DIGIT * min(len(run), _MOST_DIGITS)
    if not run.isalpha():
        return _PLAIN_SIGN if run in _PLAIN_SIGNS else _SIGN
    if not run.isascii():
        return _FOREIGN
    if len(run) == 1:
        return _LONE
    like_a_word = bool(_VOWELS & set(run)) or (run.isupper() and len(run) <= _ABBREVIATION)
    if not like_a_word:
        return _LETTER * len(run)
    return min(_LETTER * len(run), _WORD + _LETTER * max(len(run) - _LONG_WORD, 0))
