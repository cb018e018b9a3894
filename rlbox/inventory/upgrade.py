"""What an upgrade of a package takes away: messages that are gone, and the signatures that lived on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.inventory.messages import HOLE
from rlbox.inventory.table import Origin

_FILLED = ("7", "name", "'a/b.py'", "12.5 GiB")
"""What stands in for a value when a pattern is tried on a template."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """A signature that finds a message of the old version and none of the new one."""

    signature: str
    pattern: str
    template: str
    where: str


def samples(known: Origin) -> list[str]:
    """Return lines as a log shows a message, with values put in."""
    head = f"{known.message.name}: " if known.message.kind in ("raise", "assert") else ""
    return [head + known.message.template.replace(HOLE, value) for value in _FILLED]


def deaths(patterns: Mapping[str, Iterable[str]], messages: Iterable[Origin], old: str, new: str) -> list[Death]:
    """Return the patterns, by the id that they belong to, that an upgrade from `old` to `new` leaves without a message.

    A pattern that finds no message of `old` belongs to another package, or to texts that no source holds whole: nothing
    is said of it.
    """
    import re2

    kept = [(known, samples(known)) for known in messages if old in known.versions or new in known.versions]
    found = []
    for signature, own in sorted(patterns.items()):
        for pattern in own:
            compiled: Any = re2.compile(pattern)
            hits = [known for known, lines in kept if any(compiled.search(line) for line in lines)]
            before = [known for known in hits if old in known.versions]
            if before and not any(new in known.versions for known in hits):
                message = before[0].message
                text = message.template.replace(HOLE, "…")
                found.append(Death(signature=signature, pattern=pattern, template=text, where=message.where))
    return found
