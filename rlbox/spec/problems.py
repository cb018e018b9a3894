"""Several things wrong with one table of a spec, each with its own path below that table."""

from __future__ import annotations

from collections.abc import Iterable


class Problems(ValueError):
    """Raised by a validator; each of `lines` is `KEY: MESSAGE`, the key relative to the table that was validated."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))
