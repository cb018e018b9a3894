"""Signs that work goes on, that a program starts anew, and that it ends as it should."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

from rlbox.diagnose.read.words import keys, words

Sign = Literal["step", "served", "bar", "ready", "ray", "quote", "saved", "done", "start", "stop"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign at a line; `text` is the line's beginning, `clock` the time that it states.

    `lane`, `rank` (-1: it does not say) and `host` tell who wrote it, as of a `LogRow`.
    """

    number: int
    sign: Sign
    text: str
    clock: str = ""
    lane: str = ""
    rank: int = -1
    host: str = ""


def sign_of(text: str) -> Sign | None:
    """Return what a line is a sign of; None of nothing."""
    found = _pattern().search(text[:600])
    return found.lastgroup if found else None  # type: ignore[return-value]


@functools.cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{sign}>{'|'.join(words('sign', sign))})" for sign in keys("sign")))


@functools.cache
def block_pattern() -> Any:
    """Return the signs as one expression of RE2 over a block of bytes."""
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    text = "|".join(_behind_prefixes(part) for sign in keys("sign") for part in words("sign", sign))
    return re2.compile(f"(?m)(?:{text})".encode(), options)


def _behind_prefixes(text: str) -> str:
    """Return an expression that also finds what stands behind a prefix, and before codes of a terminal."""
    if text.startswith("^"):
        text = rf"(?:^|[ \]):|m]){text[1:]}"
    return rf"{text[:-1]}(?:\x1b\[[\d;]*m)*\r?$" if text.endswith("$") else text
