"""Texts that others could have written and that look most like what rlbox says: made of its own messages.

Texts of shipped specs are left out: who writes the very same gets it told.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rlbox.messages.language import messages
from rlbox.messages.template import PLACE

_NAMES = ("memory", "the file", "disk", "Ann", "3", "1.2 GB", "two words", "/data/x y", "stage", "loss", "failed")
_JOINTS = ("; ", ": ", ", ", " (", ". ", " – ", " -> ", " [")
KNOWN = (
    "CUDA out of memory. Tried to allocate 20.00 MiB",
    "dies of no memory",
    "box of Ann, without network",
    "copy of the data: one of many, read and write",
    "nothing",
    "next: rlbox run smoke; or rlbox build local",
    "failed",
)
"""Texts that were told word by word once."""


def other_words(seed: int, count: int) -> Sequence[str]:
    """Return so many different texts of one line, no two spaces beside each other, the same for the same seed."""
    dice, known = random.Random(seed), sorted(messages("zh", "[!t]*"))

    def one() -> str:
        parts = [PLACE.sub(lambda hit: dice.choice(_NAMES), dice.choice(known)) for _ in range(dice.randrange(1, 4))]
        text = dice.choice(_JOINTS).join(parts)
        return " ".join(word for word in text.split() if word.isprintable() and not {"{", "}"} & set(word)).strip()

    made = dict.fromkeys(KNOWN if seed == 0 else ())
    while len(made) < count:
        if text := one():
            made[text] = None
    return list(made)[:count]
