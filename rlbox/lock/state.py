"""Refuse a lock that does not fit its spec."""

from __future__ import annotations

from rlbox.errors import SpecError


def require_lock(target: str, state: str) -> None:
    """Raise `SpecError` unless the lock of `target` fits its spec; `state` is what `lock_state` says of it."""
    if state != "current":
        raise SpecError(
            f"the lock of target {target} is {state}",
            where=f"images/{target}/lock.json",
            next_step=f"rlbox lock {target}",
        )
