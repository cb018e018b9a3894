"""Refuse a lock that does not fit its spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlbox.errors import SpecError

if TYPE_CHECKING:
    from rlbox.image.plan import ImagePlan


def require_lock(plan: ImagePlan) -> None:
    """Raise `SpecError` unless the target's lock fits its spec."""
    if plan.lock != "current":
        raise SpecError(
            f"the lock of target {plan.target} is {plan.lock}",
            where=f"images/{plan.target}/lock.json",
            next_step=f"rlbox lock {plan.target}",
        )
