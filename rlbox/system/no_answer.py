"""That a host gave no answer, and why, in the words of a person."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["late", "silent", "cut", "unreached", "untrusted", "address"]
"""Why no answer came: the connection is not taken in time; no byte for too long; the connection ended before the answer
did; nothing listens there, or nothing that can be understood; its certificate; what no repetition changes (an address
that is none, redirects without end)."""


class NoAnswer(Exception):
    """No answer came, or only a part of one: the cause in its own words, for a sentence see `explain`."""

    def __init__(self, words: str, kind: Kind, host: str = "") -> None:
        super().__init__(words)
        self.kind, self.host = kind, host


def explain(error: Exception) -> str:
    """Return what went wrong on the way, in the words of a person."""
    match error:
        case NoAnswer(kind="late"):
            return "does not take the connection"
        case NoAnswer(kind="silent"):
            return "stalls: nothing came for too long"
        case NoAnswer(kind="cut"):
            return "breaks the connection off"
        case NoAnswer(kind="unreached" | "untrusted") if error.host:
            return f"cannot reach {error.host}: {error}"
        case _:
            return plain(error)


def plain(error: BaseException) -> str:
    """Return the error's text without the number that only C programs read."""
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
