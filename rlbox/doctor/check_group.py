"""A family of checks of the same facts; it knows itself how many they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, ParamSpec

from rlbox.findings import Finding

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class CheckGroup(Generic[P]):
    """Checks that are asked in turn, each one question; called with facts, it returns what they find.

    Where `prerequisite` finds something, the others have nothing to look at and are not asked. `len` counts all of
    them.
    """

    checks: tuple[Callable[P, Iterable[Finding]], ...]
    prerequisite: Callable[P, Iterable[Finding]] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> list[Finding]:
        found = [] if self.prerequisite is None else list(self.prerequisite(*args, **kwargs))
        return found or [finding for check in self.checks for finding in check(*args, **kwargs)]

    def __len__(self) -> int:
        return len(self.checks) + (self.prerequisite is not None)
