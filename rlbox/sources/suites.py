"""Which apt archives a base needs."""

from __future__ import annotations

from rlbox.errors import SpecError
from rlbox.target.target import Base

SHARED_ARCHIVES = ("debian", "debian-security", "ubuntu")
"""Archives that mirrors have under their own names; a lock names any other by its address."""


def suites_of(base: Base) -> dict[str, str]:
    """Return the suites that a bootstrapped base is made from, each with the archive it stands in."""
    distribution, _, suite = base.bootstrap.partition(":")
    for further in base.suites:
        if further.partition("-")[0] != suite:
            raise SpecError(f"base.suites: {further!r} is no suite of {base.bootstrap}")
    security = {further for further in base.suites if further.endswith("-security")}
    return {name: distribution + ("-security" if name in security else "") for name in (suite, *base.suites)}
