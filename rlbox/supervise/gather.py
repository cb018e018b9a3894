"""Gather the parts of an evidence folder at once, each bounded in time and size, none able to hurt another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlbox.amounts import limit_text

PART_BYTES = 1 << 20
"""The most that one part may hold; the rest of a longer one is cut, and the cut is said."""


Collector = Callable[[], str]
"""How the text of one file of the evidence is come by."""


class PartUnavailableError(Exception):
    """What a part would hold is not on this machine, or may not be read; the message says which."""


@dataclass(frozen=True, kw_only=True)
class CollectedTexts:
    """`texts` by name, in the order of the parts; `missing` says by name why a part is not there."""

    texts: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)


def collect_texts(parts: Mapping[str, Collector], limit_s: float) -> CollectedTexts:
    """Return what all `parts`, by name, gave within `limit_s` seconds.

    They run in daemon threads: one that hangs in the kernel is left behind and named.
    """
    found, why = dict[str, str](), dict[str, str]()

    def run(name: str, collect: Collector) -> None:
        try:
            found[name] = _bounded(collect())
        except Exception as error:  # whatever a collector runs into, the others and the cause go on
            why[name] = str(error) if isinstance(error, PartUnavailableError) else f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=part, daemon=True) for part in parts.items()]
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = f"not done after {limit_text(limit_s)}"
    texts, missing = dict(found), dict(why)
    return CollectedTexts(
        texts={name: texts[name] for name in parts if name in texts},
        missing={name: missing.get(name, late) for name in parts if name not in texts},
    )


def _bounded(text: str) -> str:
    if len(text) <= PART_BYTES:
        return text
    kept = text[: text.rfind("\n", 0, PART_BYTES) + 1]  # at a line's end: half a secret would not be masked
    return f"{kept}... cut here: {len(text) - len(kept)} more characters\n"
