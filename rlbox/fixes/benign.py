"""Warnings that must not alarm, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from rlbox.fixes.fix import Fix
from rlbox.job.gate_plan import BenignPlan


def known_benign(fixes: Iterable[Fix]) -> tuple[BenignPlan, ...]:
    """Return the benign lines of the catalogue, in any log.

    Those of fixes named `benign-…`; another benign fix tells that nothing is broken, not that nothing happened.
    """
    return tuple(
        BenignPlan(pattern=signature.pattern, after=signature.after, why=fix.title, known=fix.id)
        for fix in fixes
        if fix.benign and fix.id.startswith("benign-")
        for signature in fix.signature
    )
