"""What a goal is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.pairs import Sample
from benchmarks.place import Place


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One ratio. `key` is the goal's number, with a letter for a further case of it; no gate: reported only.

    `quick_rounds` is for `--quick`.
    """

    key: str
    what: str
    anchor: str
    gate: float | None
    stretch: float | None
    measure: Callable[[Place, int], Sample]
    rounds: int = 15
    quick_rounds: int = 5

    @property
    def number(self) -> str:
        """The goal's number alone."""
        return self.key.rstrip("abcdefgh")
