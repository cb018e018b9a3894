"""The texts that a line which says that something failed nearly always holds: what a scan looks for first.

Each is rare in a healthy log of hundreds of megabytes; what a library says without any of them is reached by the
anchors of the signature that knows it.
"""

from __future__ import annotations

from rlbox.diagnose.read.words import words


def triggers() -> tuple[str, ...]:
    """Return the texts; some hold a line feed before or behind a word."""
    return words("scan", "triggers")


def is_triggered(text: str) -> bool:
    """Whether a line holds one of the texts, as a scan sees it."""
    line = f"\n{text}\n"
    return any(trigger in line for trigger in triggers())
