"""Say a line where a stage's gate reads it."""

from __future__ import annotations

import sys

from rlbox.printable import printable


def say(line: str) -> None:
    """Write a line to standard output, at once."""
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()
