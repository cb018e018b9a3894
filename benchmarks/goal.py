"""What a goal is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.pairs import Sample
from benchmarks.place import Place


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One ratio. `key` is the goal's number, with a letter for a further case of it; no gate: reported only.

    Where the limit of the machine, or of the library that rlbox speaks through, is measured beside it, at most
    `of_limit` of that will do as well as the gate. `quick_rounds` is for `--quick`.
    """

    key: str
    what: str
    anchor: str
    gate: float | None
    stretch: float | None
    measure: Callable[[Place], Sample]
    of_limit: float | None = None
    rounds: int = 15
    quick_rounds: int = 5

    @property
    def number(self) -> str:
        """The goal's number alone."""
        return self.key.rstrip("abcdefgh")

    def holds(self, sample: Sample) -> bool:
        """Return whether the gate is held."""
        if self.of_limit is not None and sample.of_limit is not None and sample.of_limit <= self.of_limit:
            return True
        return self.gate is None or sample.ratio <= self.gate
