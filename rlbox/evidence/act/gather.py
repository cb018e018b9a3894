"""Gather the parts of an evidence folder at once, each bounded in time and size, none able to hurt another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

PART_BYTES = 1 << 20
"""The most that one part may hold; the rest of a longer one is cut, and the cut is said."""


class NotHere(Exception):
    """What a part would hold is not on this machine, or may not be read; the message says which."""


@dataclass(frozen=True, kw_only=True)
class EvidencePart:
    """One file of the evidence: `name` below the folder, and how its text is come by."""

    name: str
    collect: Callable[[], str]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """`texts` by name, in the order of the parts; `missing` says by name why a part is not there."""

    texts: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)


def gather(parts: Iterable[EvidencePart], limit_s: float) -> Gathered:
    """Return what all `parts` gave within `limit_s` seconds.

    They run in daemon threads: one that hangs in the kernel is left behind and named.
    """
    parts, found, why = tuple(parts), dict[str, str](), dict[str, str]()

    def run(part: EvidencePart) -> None:
        try:
            found[part.name] = _bounded(part.collect())
        except Exception as error:  # whatever a collector runs into, the others and the cause go on
            why[part.name] = str(error) if isinstance(error, NotHere) else f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=(part,), daemon=True) for part in parts]
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = f"not done after {limit_s:g} s"
    texts, missing = dict(found), dict(why)
    return Gathered(
        texts={part.name: texts[part.name] for part in parts if part.name in texts},
        missing={part.name: missing.get(part.name, late) for part in parts if part.name not in texts},
    )


def _bounded(text: str) -> str:
    if len(text) <= PART_BYTES:
        return text
    kept = text[: text.rfind("\n", 0, PART_BYTES) + 1]  # at a line's end: half a secret would not be masked
    return f"{kept}... cut here: {len(text) - len(kept)} more characters\n"
